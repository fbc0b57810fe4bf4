//! Keeps claimed ranges in a linear list, as Linux keeps its resources.

use anyhow::{Context, Result, bail};
use hotmem::PfnRange;

/// A linear list of claimed ranges in the order of addresses.
#[derive(Default)]
pub(super) struct Claims {
    claims: Vec<Claim>,
    /// The index of the claim with the lowest address.
    first: Option<u32>,
    /// The index of the first claim that is not in use.
    unused: Option<u32>,
}

#[derive(Clone, Copy)]
struct Claim {
    range: PfnRange,
    next: Option<u32>,
}

impl Claims {
    /// Returns the claim with an index.
    fn at(&self, claim: u32) -> &Claim {
        &self.claims[claim as usize]
    }

    /// Returns the first claim that ends above the start of `range`, and the claim before it:
    /// `(before, next)`.
    fn find(&self, range: PfnRange) -> (Option<u32>, Option<u32>) {
        let (mut before, mut next) = (None, self.first);
        while let Some(claim) = next {
            if self.at(claim).range.end() > range.start() {
                break;
            }
            (before, next) = (next, self.at(claim).next);
        }
        (before, next)
    }

    /// Makes `to` the claim after `before`, or the first claim if `before` is `None`.
    fn link(&mut self, before: Option<u32>, to: Option<u32>) {
        match before {
            Some(before) => self.claims[before as usize].next = to,
            None => self.first = to,
        }
    }

    /// Claims `range`.
    ///
    /// # Errors
    /// If a part of `range` is claimed.
    pub(super) fn insert(&mut self, range: PfnRange) -> Result<()> {
        let (before, next) = self.find(range);
        if next.is_some_and(|next| self.at(next).range.overlaps(range)) {
            bail!("a part of {range} is claimed already");
        }
        let claim = Claim { range, next };
        let index = match self.unused.take() {
            Some(unused) => {
                self.unused = self.at(unused).next;
                self.claims[unused as usize] = claim;
                unused
            }
            None => {
                self.claims.push(claim);
                u32::try_from(self.claims.len() - 1)?
            }
        };
        self.link(before, Some(index));
        Ok(())
    }

    /// Removes the claim of exactly `range`.
    ///
    /// # Errors
    /// If there is no such claim.
    pub(super) fn remove(&mut self, range: PfnRange) -> Result<()> {
        let (before, found) = self.find(range);
        let found = found
            .filter(|&found| self.at(found).range == range)
            .context("no claim has exactly this range")?;
        self.link(before, self.at(found).next);
        self.claims[found as usize].next = self.unused.replace(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::Bytes;

    const SIZE: Bytes = Bytes::mib(256);

    #[test]
    fn claims_are_in_the_order_of_their_addresses() {
        let range = |nth: u64| PfnRange::from_bytes(nth * SIZE.0, SIZE).unwrap();
        let mut claims = Claims::default();
        for nth in [5, 3, 9, 0] {
            claims.insert(range(nth)).unwrap();
        }
        assert!(claims.insert(range(3)).is_err());
        claims.remove(range(3)).unwrap();
        assert!(claims.remove(range(3)).is_err());
        claims.insert(range(4)).unwrap();
        let mut found = Vec::new();
        let mut next = claims.first;
        while let Some(claim) = next {
            found.push(claims.at(claim).range.start().phys_addr() / SIZE.0);
            next = claims.at(claim).next;
        }
        assert_eq!(found, [0, 4, 5, 9]);
        assert_eq!(claims.claims.len(), 4);
    }
}
