//! Resizes virtio-mem devices, and reports the results.

use super::Session;
use super::touching::TouchRound;
use crate::kernel::attached_device::AttachedDevice;
use crate::kernel::contents;
use crate::kernel::descriptors::CheckedDescriptors;
use crate::kernel::engine::Engine;
use crate::kernel::fatal::{give_up, must};
use crate::kernel::heap::{self, HeapUse};
use crate::kernel::hooks::KernelMapping;
use crate::kernel::memory::FRAMES;
use crate::kernel::moving_pages;
use crate::kernel::progress::WATCHDOG;
use crate::kernel::this_cpu::ThisCpu;
use core::time::Duration;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{Bytes, Hotplug, NodeId, ZonePart};
use hotmem_guest::cmdline::{Release, Touch};
use hotmem_guest::event::Event;
use hotmem_guest::watchdog::Step;
use hotmem_virtio::mem::{Progress, Status};

impl Session {
    /// Runs one step of a device's driver. Returns `None` if there is no such device.
    #[inline(never)]
    pub(super) fn step_device(&mut self, number: usize) -> Option<Progress> {
        let attached = self.devices[number].as_mut()?;
        let now_us = self.clock.now_us();
        let (plugged, requests) =
            (attached.driver().plugged(), attached.driver().statistics().requests);
        let Engine { hotplug, hooks } = &mut *self.engine;
        let now = Duration::from_micros(now_us);
        let mut memory = must("virtio-mem", attached.memory.bind(hotplug, hooks));
        let progress = attached.device.poll(now, 1, &mut memory);
        drop(memory);
        let missing_frames = attached.memory.take_missing_frames();
        attached.set_target(now_us, plugged, requests);
        attached.query_zone(plugged, self.engine);
        // The driver is ready only with a failure, after which it does nothing.
        if let Progress::Ready(failure) = progress {
            give_up(format_args!("virtio-mem: device {number}: {failure}"));
        }
        if missing_frames > 0 {
            self.request_for_tables(missing_frames);
        }
        Some(progress)
    }

    /// Requests from the balloon the kernel memory that an addition lacked and that is tried again
    /// later. Whole pageblocks come back, so that the next additions need not ask again. Returns
    /// whether any memory was returned or will be returned.
    pub(super) fn request_for_tables(&mut self, missing_frames: u64) -> bool {
        if self.balloon_is_returning_memory() {
            return true;
        }
        let (Some(balloon), Some(memory)) = (&*self.balloon, &mut self.engine.hooks.balloon) else {
            return false;
        };
        balloon.request_back(missing_frames.next_multiple_of(PAGEBLOCK_FRAMES as u64), memory)
    }

    /// Reports that a requested size was reached, or cannot be reached at the moment.
    #[inline(never)]
    pub(super) fn report_status(&mut self, number: usize) {
        let Some(attached) = &mut self.devices[number] else { return };
        match attached.driver().status() {
            Status::Reached if !attached.target.is_reached => self.report_reached(number),
            Status::Pending(reason) if attached.target.reported_delay != Some(reason) => {
                attached.target.reported_delay = Some(reason);
                let (target, plugged) = (attached.target.size, attached.driver().plugged());
                let node = attached.node();
                self.report.event(&Event::Pending {
                    device: number,
                    node,
                    target,
                    plugged,
                    why: &reason,
                });
            }
            _ => {}
        }
    }

    fn report_reached(&mut self, number: usize) {
        let Some(attached) = &mut self.devices[number] else { return };
        attached.target.is_reached = true;
        let (plugged_before, plugged, node) =
            (attached.target.plugged_before, attached.driver().plugged(), attached.node());
        let counts = FRAMES.counts();
        self.report.event(&Event::Resized {
            device: number,
            node,
            node_online: node_online(&self.engine.hotplug, node),
            target: attached.target.size,
            plugged,
            online: Bytes(counts.online * FRAME_SIZE),
            free: Bytes(counts.free * FRAME_SIZE),
            requests: attached
                .driver()
                .statistics()
                .requests
                .wrapping_sub(attached.target.requests_before),
            us: self.clock.now_us().saturating_sub(attached.target.since_us),
            interrupted: attached.target.came_by_interrupt,
            zone: attached.zone.as_mut().and_then(|zone| zone.report(&self.engine.hotplug)),
        });
        self.resizes += 1;
        self.report_written_and_verified();
        if self.options.descriptors {
            WATCHDOG.enter(Step::Verify);
            must("descriptors", self.engine.check_descriptors(CheckedDescriptors::Sample));
        }
        if plugged >= plugged_before {
            self.report.ok(format_args!("plug {}", plugged - plugged_before));
        } else {
            self.report.ok(format_args!("unplug {}", plugged_before - plugged));
        }
        if plugged > plugged_before && self.options.touch != Touch::UpTo(Bytes::ZERO) {
            self.engine.hooks.workload.memory_was_plugged();
            self.touch_round = Some(TouchRound::default());
        }
        if self.options.memory_written_by_cpus != Bytes::ZERO {
            WATCHDOG.enter(Step::Verify);
            if plugged > plugged_before {
                moving_pages::grow(self.options.memory_written_by_cpus);
            }
            self.report.event(&moving_pages::check_dirty_bits());
        }
        if self.objects.are_wanted() {
            WATCHDOG.enter(Step::Heap);
            if plugged > plugged_before {
                self.objects.make();
            }
            self.report_heap();
        }
    }

    /// If a device's memory cannot be removed, unpins or frees some objects on the kernel's heap.
    pub(super) fn release_objects(&mut self) {
        let may_free = self.objects.are_wanted() && self.options.release != Release::Never;
        if may_free && self.devices().any(AttachedDevice::take_failed_removal) {
            WATCHDOG.enter(Step::Heap);
            self.objects.release_objects();
            self.report_heap();
        }
    }

    pub(super) fn report_heap(&mut self) {
        self.objects.verify();
        let HeapUse { mapped, migrated } = heap::usage();
        self.report.event(&Event::Heap { objects: self.objects.len(), mapped, moved: migrated });
    }

    pub(super) fn report_written_and_verified(&mut self) {
        let bytes = self.engine.hooks.workload.take_verified();
        if bytes != Bytes::ZERO {
            self.report.event(&Event::Verified { bytes });
        }
        if let Some(event) = contents::event() {
            self.report.event(&event);
        }
        let words = FRAMES.counts().words;
        let new_words = words.saturating_sub(core::mem::replace(&mut self.word_frames, words));
        let described = core::mem::take(&mut self.engine.mapping().bytes_described);
        let written = described + Bytes(new_words * FRAME_SIZE);
        if written != Bytes::ZERO {
            self.report.event(&Event::Metadata { written });
        }
    }
}

/// Returns the online memory of a node.
fn node_online(hotplug: &Hotplug<'static, ThisCpu, KernelMapping>, node: u16) -> Bytes {
    let frames =
        |node| ZonePart::ALL.iter().map(|&part| hotplug.zone(node, part).online).sum::<u64>();
    Bytes(frames(NodeId(node.into())) * FRAME_SIZE)
}
