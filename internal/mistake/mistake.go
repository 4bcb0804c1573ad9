// Package mistake has the mistakes that this code must not make, each of which a
// build with the tag "broken" makes when it is told to. The simulation is held to
// catching every one of them (`go test -tags broken ./internal/sim`): invariants that
// no mistake breaks prove nothing.
//
// In every other build Made is false wherever it is asked, which the compiler knows:
// nothing of a mistake is left in a program that anybody runs. That is why this is a
// build tag, and no variable that a test sets; and why the mistakes stand where they
// would be made, and not in copies of that code, which would drift away from it.
package mistake

// Mistake is one of them.
type Mistake string

// The mistakes of the lease.
const (
	ReleaseDeletesRecord Mistake = "release-deletes-record"    // the fence begins anew
	ExpiryByWallClock    Mistake = "expiry-by-wall-clock"      // the holder counts by its time of day
	ForeignClockTrusted  Mistake = "foreign-clock-trusted"     // a challenger believes the record's expiry
	TakeoverTooEarly     Mistake = "takeover-too-early"        // a challenger watches for less than the TTL
	SeqLeftOut           Mistake = "seq-left-out"              // a renewal looks like no renewal
	FenceNotGrown        Mistake = "fence-not-grown"           // a takeover keeps the fence
	HolderNeverStops     Mistake = "holder-never-stops"        // it acts until it reads that it lost
	CountedFromAnswer    Mistake = "holder-counts-from-answer" // others count from when it was sent
)

// The mistakes of the documents.
const (
	FenceNotChecked     Mistake = "fence-not-checked"    // a placement goes over a newer coordinator's
	ReadBackSkipped     Mistake = "read-back-skipped"    // a lost answer counts as success
	UnknownRetried      Mistake = "unknown-retried"      // a lost answer has the write sent again, whatever stands there
	UIDReused           Mistake = "uid-reused"           // a name's next life has the uid of the last
	AnnouncementMissing Mistake = "announcement-missing" // a placement is written, and nobody told
	ClaimWithoutLook    Mistake = "claim-without-look"   // a claim does not look for those that exclude it
	ClaimNotListed      Mistake = "claim-not-listed"     // a claim is answered before its application lists it
	RemovalNotDone      Mistake = "removal-not-done"     // an operator who is said to be removed is not
)

// The mistakes of deploys, deletions and processes.
const (
	SlotIgnored        Mistake = "slot-ignored"         // two deploys of an application publish at once
	OrderIgnored       Mistake = "order-ignored"        // an earlier deploy goes over a later one
	RevertForgotten    Mistake = "revert-forgotten"     // what a failed deploy did stays
	PointerDeleted     Mistake = "pointer-deleted"      // a DELETE, which may come twice, undoes a deploy
	SlotNeverFreed     Mistake = "slot-never-freed"     // a deploy that ended holds its application
	DeletionNotChecked Mistake = "deletion-unchecked"   // a deletion does not look whether it still may
	ForgottenKept      Mistake = "forgotten-kept"       // nobody looks for what an earlier daemon left
	RoutesBeforeHealth Mistake = "routes-before-health" // a process that starts is routed to
)

// All are all of them.
var All = []Mistake{
	ReleaseDeletesRecord, ExpiryByWallClock, ForeignClockTrusted, TakeoverTooEarly, SeqLeftOut, FenceNotGrown,
	HolderNeverStops, CountedFromAnswer, FenceNotChecked, ReadBackSkipped, UnknownRetried, UIDReused,
	AnnouncementMissing, ClaimWithoutLook, ClaimNotListed, RemovalNotDone,
	SlotIgnored, OrderIgnored, RevertForgotten, PointerDeleted, SlotNeverFreed, DeletionNotChecked, ForgottenKept,
	RoutesBeforeHealth,
}
