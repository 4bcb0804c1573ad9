// Package scafo is the vocabulary of a scafo fleet: names, hosts, scopes, the
// documents of the registry, and the error codes that the node API answers
// with.
//
// A fleet is a set of machines and one S3-compatible bucket. Everything in this
// package is a value: nothing here reads a clock, a file, a network or a source
// of randomness, and it imports the standard library alone, so that every other
// package may depend on it.
package scafo

// Version is the release of scafo, as `scafo version`, the health route and the
// node records carry it.
const Version = "0.1.0"
