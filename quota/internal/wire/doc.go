// Package wire talks to the API server about Workloads, which come and go as JSON:
// a custom resource has no other form. Of all that the quota controller does, the
// decoding of Workloads took the most time, as client-go's decoder looks at each
// byte of a message of a watch about eight times. Here it is three or four times,
// and of an object that comes alone, in a message of a watch or as the answer to a
// write, the lists of who manages which field are passed over, half of its size.
// Lists have them.
//
// Nothing else is different: names of fields are matched exactly, and whatever this
// decoder refuses is given to client-go's, whose word is final.
//
// The quota controller uses it for its cache, its writes and its reads past the
// cache. Objects of other kinds go their usual way.
package wire
