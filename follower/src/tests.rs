//! Tests of the program's parts against a gateway of their own.
