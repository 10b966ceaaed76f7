// Package jobs knows the kinds of jobs that the budget governs: how one is
// suspended, where its pod templates and counts are, and how it ends.
//
// A kind is a row in a table ([Kinds]), not code: everything here works on any
// row. The package is pure; it reads and changes objects that the controller
// has fetched and will write.
package jobs
