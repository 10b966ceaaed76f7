// Package account makes, changes and reads the three files of a share: limit,
// grant and account.
//
// The node plugin makes them when it prepares a share and mounts them one by
// one into the containers of the pod, where the limiter finds them. Once a
// file is there, its inode is never replaced: a mount in a running container
// would go on showing the old one. What changes, changes in place.
//
//	limit    what the share may use      written once by Create
//	grant    what it is told now         rewritten in place by UpdateGrant
//	account  what it uses                written by the tenant, read by Read
//
// The tenant writes the account and may write anything into it. Read therefore
// reads it with pread into memory of its own and never maps it (a tenant that
// truncates a mapped file kills the reader with SIGBUS), follows no links,
// waits for nothing, and bounds every number. What it returns is a claim of
// the tenant about its own share. It decides nothing for others: the truth
// about the card is NVML's.
//
// The package decides no limit and knows no Kubernetes; package driver calls
// it. The bytes are those of hook/include/sluice_layout.h, and a test compares
// the two.
package account
