//! The generated definitions, compared with the tables of the specification.

#[cfg(test)]
mod definitions;
#[cfg(test)]
mod generated_files;
#[cfg(test)]
mod node_state;
