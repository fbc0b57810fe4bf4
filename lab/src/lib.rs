//! The lab behind the `hotmem` command: hosted machine, QEMU runner, peers, tables.
