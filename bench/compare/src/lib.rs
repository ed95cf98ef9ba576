//! The loads on which servers are compared, for the programs that run them.

pub mod loads;
pub mod work;
