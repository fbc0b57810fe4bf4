//! Generates the requests that the bench makes: their sizes, CPUs and lifetimes.

use crate::bench::random::{ORDERS, Random};

/// The percentage of requests for memory that is used for a short time.
const SHORT_PERCENT: u64 = 90;
/// The mean lifetime of the other requests divided by that of these.
const LONG_FACTOR: u64 = 100;
/// The percentage of frames in use.
const IN_USE_PERCENT: u64 = 90;

/// A request, and when and by which CPU its memory is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::bench) struct Request {
    pub(in crate::bench) order: u32,
    /// The CPU that allocates.
    pub(in crate::bench) cpu: usize,
    /// The CPU that frees. Memory with a short lifetime is freed by the CPU that allocated it.
    pub(in crate::bench) freed_by: usize,
    /// The number of requests after which the memory may be freed.
    pub(in crate::bench) lifetime: u64,
}

/// An endless sequence of requests.
#[derive(Clone, Debug)]
pub(in crate::bench) struct Requests {
    sizes: Random,
    /// A separate generator for CPUs, so that sizes and lifetimes do not depend on the number of
    /// CPUs.
    cpu_random: Random,
    cpus: u16,
    /// The mean of a short lifetime, in requests.
    mean_short_lifetime: u64,
}

/// Returns how many of `frames` frames are in use.
pub(super) const fn in_use(frames: u64) -> u64 {
    frames * IN_USE_PERCENT / 100
}

impl Requests {
    /// Returns requests by `cpus` CPUs that together keep about `used_frames` frames allocated.
    pub(in crate::bench) fn new(seed: u64, cpus: u16, used_frames: u64) -> Requests {
        // The number of requests whose memory is in use equals the number of requests that are made
        // within a mean lifetime (Little's law).
        let frames_per_100_requests: u64 =
            ORDERS.iter().map(|&(order, share)| share << order).sum();
        let live_requests = used_frames * 100 / frames_per_100_requests;
        let short = live_requests * 100 / (SHORT_PERCENT + (100 - SHORT_PERCENT) * LONG_FACTOR);
        let [sizes, cpu_random] = [seed, !seed].map(Random::with_seed);
        Requests { sizes, cpu_random, cpus, mean_short_lifetime: short.max(1) }
    }

    /// Returns the next request.
    pub(in crate::bench) fn next(&mut self) -> Request {
        let order = self.sizes.order();
        let is_short = self.sizes.below(100) < SHORT_PERCENT;
        let mean = if is_short {
            self.mean_short_lifetime
        } else {
            self.mean_short_lifetime * LONG_FACTOR
        };
        // Lifetimes are distributed uniformly from 1 to twice the mean.
        let lifetime = 1 + self.sizes.below(2 * mean);
        let mut random_cpu = || self.cpu_random.index_below(self.cpus.into());
        let (cpu, later_cpu) = (random_cpu(), random_cpu());
        Request { order, cpu, freed_by: if is_short { cpu } else { later_cpu }, lifetime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u64 = 1 << 20;

    fn generate(seed: u64, cpus: u16) -> Vec<Request> {
        let mut requests = Requests::new(seed, cpus, in_use(FRAMES));
        (0..200_000).map(|_| requests.next()).collect()
    }

    #[test]
    fn a_seed_gives_the_same_requests() {
        assert_eq!(generate(1, 16), generate(1, 16));
        assert_ne!(generate(1, 16), generate(2, 16));
        // For any number of CPUs the requests are the same, except for the CPU that makes them.
        let size_and_lifetime = |request: &Request| (request.order, request.lifetime);
        let on_one = generate(1, 1);
        let on_one = on_one.iter().map(size_and_lifetime);
        assert!(on_one.eq(generate(1, 16).iter().map(size_and_lifetime)));
    }

    #[test]
    fn orders_cpus_and_lifetimes_have_the_expected_shares() {
        let requests = generate(1, 16);
        let share = |condition: &dyn Fn(&Request) -> bool| {
            requests.iter().filter(|request| condition(request)).count() as f64
                / requests.len() as f64
        };
        for (order, expected) in ORDERS {
            let found = share(&|request| request.order == order) * 100.0;
            assert!((found / expected as f64 - 1.0).abs() < 0.05, "order {order}: {found} %");
        }
        for cpu in 0..16 {
            let found = share(&|request| request.cpu == cpu);
            assert!((found * 16.0 - 1.0).abs() < 0.05, "CPU {cpu}: {found}");
        }
        // One in ten has a long lifetime, and 15 of 16 of these are freed by another CPU.
        let freed_elsewhere = share(&|request| request.cpu != request.freed_by);
        assert!((freed_elsewhere / (0.1 * 15.0 / 16.0) - 1.0).abs() < 0.05, "{freed_elsewhere}");
        let short = Requests::new(1, 16, in_use(FRAMES)).mean_short_lifetime;
        let long = share(&|request| request.lifetime > 2 * short);
        assert!((long / 0.099 - 1.0).abs() < 0.05, "{long}");
    }

    /// The lifetimes alone, without a check of the free memory, keep about 90 % of the memory in
    /// use.
    #[test]
    fn lifetimes_keep_90_percent_in_use() {
        let mut requests = Requests::new(1, 1, in_use(FRAMES));
        let count = 5 * LONG_FACTOR * requests.mean_short_lifetime;
        let timed_requests = (0..count).map(|now| (now, requests.next()));
        let live_requests = timed_requests.filter(|(now, request)| now + request.lifetime > count);
        let frames: u64 = live_requests.map(|(_, request)| 1 << request.order).sum();
        let share = frames as f64 / FRAMES as f64;
        assert!((0.85..0.95).contains(&share), "{share}");
    }
}
