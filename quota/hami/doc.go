// Package hami reads what pods written for HAMi ask of GPUs, as limits and
// annotations, and turns it into claims that the scheduler can allocate.
//
// It is pure: a pod's spec and annotations go in, a [Translation] comes out. It
// makes no objects and prices nothing. The webhook translates pods as they are
// made; the controller translates the pod templates of jobs, which stay as their
// user wrote them, to know what their pods will ask for.
//
// # Limits
//
//	nvidia.com/gpu              GPUs, or parts of one; 1 if it is left out
//	nvidia.com/gpumem           memory of each, in MiB
//	nvidia.com/gpumem-percentage  memory of each, in percent of the card
//	nvidia.com/gpucores         time of each, in percent of the card's
//	nvidia.com/gpu-memory       memory of each, in bytes
//	nvidia.com/gpu-core-percent time of each, in percent of the card's
//
// A pod that says only nvidia.com/gpu is not translated: the scheduler makes its
// claim itself (KEP-5004).
//
// # Annotations
//
// The use-gputype and nouse-gputype lists name parts of product names, in any
// case; use-gpuuuid and nouse-gpuuuid name whole UUIDs. They hold for every
// container of the pod.
package hami
