// Package hook holds the tests of the limiter, the C libraries that hold a
// container to its share of a card. The libraries are in src, built by
// build.sh; README.md tells how a call travels through them. There is no Go
// code to call here: the node's side of the share files is in package account.
package hook
