//! Keeps the ranges of RAM in a linear list, as Linux keeps its resources.

use anyhow::{Context, Result, bail};
use hotmem::PfnRange;

/// A linear list of ranges in the order of their addresses.
#[derive(Default)]
pub(super) struct Resources {
    resources: Vec<Resource>,
    /// The index of the resource with the lowest address.
    lowest: Option<u32>,
    /// The index of the first resource that is not in use.
    first_unused: Option<u32>,
}

#[derive(Clone, Copy)]
struct Resource {
    range: PfnRange,
    next: Option<u32>,
}

impl Resources {
    /// Returns the resource with an index.
    fn get(&self, resource: u32) -> &Resource {
        &self.resources[resource as usize]
    }

    /// Returns the first resource that ends above the start of `range`, and the resource before it:
    /// `(before, next)`.
    fn find(&self, range: PfnRange) -> (Option<u32>, Option<u32>) {
        let (mut before, mut next) = (None, self.lowest);
        while let Some(resource) = next {
            if self.get(resource).range.end() > range.start() {
                break;
            }
            (before, next) = (next, self.get(resource).next);
        }
        (before, next)
    }

    /// Makes `next` the resource after `before`, or the first resource if `before` is `None`.
    fn link(&mut self, before: Option<u32>, next: Option<u32>) {
        match before {
            Some(before) => self.resources[before as usize].next = next,
            None => self.lowest = next,
        }
    }

    /// Inserts `range`.
    ///
    /// # Errors
    /// A part of `range` is in the list.
    pub(super) fn insert(&mut self, range: PfnRange) -> Result<()> {
        let (before, next) = self.find(range);
        if next.is_some_and(|next| self.get(next).range.overlaps(range)) {
            bail!("a part of {range} is in the list already");
        }
        let resource = Resource { range, next };
        let index = match self.first_unused.take() {
            Some(unused) => {
                self.first_unused = self.get(unused).next;
                self.resources[unused as usize] = resource;
                unused
            }
            None => {
                self.resources.push(resource);
                u32::try_from(self.resources.len() - 1)?
            }
        };
        self.link(before, Some(index));
        Ok(())
    }

    /// Removes the resource of exactly `range`.
    ///
    /// # Errors
    /// There is no such resource.
    pub(super) fn remove(&mut self, range: PfnRange) -> Result<()> {
        let (before, found) = self.find(range);
        let found = found
            .filter(|&found| self.get(found).range == range)
            .context("no resource has exactly this range")?;
        self.link(before, self.get(found).next);
        self.resources[found as usize].next = self.first_unused.replace(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Bytes;

    const SIZE: Bytes = Bytes::mib(256);

    #[test]
    fn resources_are_in_the_order_of_their_addresses() {
        let range = |nth: u64| PfnRange::from_bytes(nth * SIZE.0, SIZE).unwrap();
        let mut resources = Resources::default();
        for nth in [5, 3, 9, 0] {
            resources.insert(range(nth)).unwrap();
        }
        assert!(resources.insert(range(3)).is_err());
        resources.remove(range(3)).unwrap();
        assert!(resources.remove(range(3)).is_err());
        resources.insert(range(4)).unwrap();
        let mut found = Vec::new();
        let mut next = resources.lowest;
        while let Some(resource) = next {
            found.push(resources.get(resource).range.start().phys_addr() / SIZE.0);
            next = resources.get(resource).next;
        }
        assert_eq!(found, [0, 4, 5, 9]);
        assert_eq!(resources.resources.len(), 4);
    }
}
