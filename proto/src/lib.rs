pub mod ids;
