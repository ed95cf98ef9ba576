//! Tests of the parser as a whole: recorded answers, single cases, properties, and a soak test.

mod cases;
mod common;
mod elements;
mod numbers;
mod packet_stream;
mod packets;
mod prop;
mod responses;
mod soak;
mod transcript;
