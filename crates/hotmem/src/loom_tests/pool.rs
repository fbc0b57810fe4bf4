//! The pool of frames for metadata: areas that are added while frames are taken and given back.

use super::boxes::Boxes;
use super::machine::range;
use super::model;
use crate::addr::Pfn;
use crate::sync::begin_thread;
use crate::words::directory::{Area, Pool};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// A pool, and what its frames hold: loom sees if two have one at a time.
struct World {
    pool: Pool,
    frames: Vec<UnsafeCell<u64>>,
    boxes: Mutex<Boxes>,
}

// SAFETY: the cells are loom's, which checks who touches them.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<World> {
        let frames = (0..16).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(World { pool: Pool::new(), frames, boxes: Mutex::default() })
    }

    fn add(&self, start: u64, frames: u64) {
        let head = self.boxes.lock().unwrap().keep(Area::zeroed());
        // SAFETY: the box lives as long as the world.
        unsafe { self.pool.add(head.as_ptr(), range(start, frames)) };
    }

    fn take(&self, frames: usize) -> Option<Pfn> {
        let first = self.pool.take(frames)?;
        self.touch(first, frames);
        Some(first)
    }

    fn touch(&self, first: Pfn, frames: usize) {
        let first = usize::try_from(first.number()).unwrap();
        self.frames[first..first + frames].iter().for_each(|frame| frame.with_mut(|_| ()));
    }

    fn give(&self, first: Pfn, frames: usize) {
        self.touch(first, frames);
        assert!(self.pool.give(first, frames));
    }
}

fn on<T: 'static>(
    number: usize,
    world: &Arc<World>,
    work: impl FnOnce(&World) -> T + 'static,
) -> thread::JoinHandle<T> {
    let world = world.clone();
    thread::spawn(move || {
        begin_thread(number);
        work(&world)
    })
}

#[test]
fn two_take_from_one_word() {
    model(|| {
        let world = World::new();
        world.add(0, 4);
        let other = on(1, &world, |world| world.take(1));
        let mine = world.take(2);
        let (mine, other) = (mine.unwrap(), other.join().unwrap().unwrap());
        assert!(mine.number() != 0 && other.number() != 0);
        assert_eq!(world.pool.counts(), (0, 4));
        world.give(mine, 2);
        world.give(other, 1);
        assert_eq!(world.pool.counts(), (3, 4));
    });
}

#[test]
fn a_frame_is_given_back_while_one_is_taken() {
    model(|| {
        let world = World::new();
        world.add(0, 2);
        let first = world.take(1).unwrap();
        let other = on(1, &world, move |world| world.give(first, 1));
        let mine = world.take(1);
        other.join().unwrap();
        assert_eq!(world.pool.counts().0, u64::from(mine.is_none()));
    });
}

#[test]
fn two_give_to_one_word() {
    model(|| {
        let world = World::new();
        world.add(0, 4);
        let (first, second) = (world.take(1).unwrap(), world.take(2).unwrap());
        let other = on(1, &world, move |world| world.give(first, 1));
        world.give(second, 2);
        other.join().unwrap();
        assert_eq!(world.pool.counts(), (3, 4));
    });
}

#[test]
fn areas_are_added_by_two_while_a_frame_is_taken() {
    model(|| {
        let world = World::new();
        let other = on(1, &world, |world| world.add(0, 3));
        let another = on(2, &world, |world| world.take(1));
        world.add(8, 3);
        let mine = world.take(1).expect("the area was added before");
        other.join().unwrap();
        let another = another.join().unwrap();
        assert_ne!(Some(mine), another);
        assert_eq!(world.pool.counts(), (if another.is_none() { 3 } else { 2 }, 6));
        assert!(world.pool.has(range(0, 1)) && world.pool.has(range(9, 1)));
    });
}
