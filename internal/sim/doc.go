// Package sim runs whole fleets in virtual time, with everything that goes wrong
// between machines, a network and a store, and looks at the invariants of the fleet
// after every write. It has tests alone.
//
//	go test ./internal/sim -seeds 10000            many fleets, on all cores
//	go test ./internal/sim -run TestFleet -seed 7 -show -v    one, with its trace
//
// # What is real
//
// Each simulated daemon is made of production's own parts, tied together as a node
// ties them: the registry with its follower and announcements, the lease, the
// reconcile loop with its coordinator pass, probes, hints, reaping and drain, the
// deploy service and the deletion service. What they talk to is simulated: the way to
// the store (wire_test.go), the other daemons (peers_test.go), the processes of a
// machine and their supervisor (machine_test.go), the runtime's deploy command, the
// clocks (life_test.go). The store itself is the one in memory that the bucket's
// contract suite holds to its word.
//
// # What goes wrong
//
// chaos_test.go has the faults of machines: kill -9, loss of power, SIGSTOP, SIGTERM,
// wrong and jumping times of day, clocks that run at different rates, partitions
// between machines, processes that crash and such that their daemon forgot.
// wire_test.go has those of the store: away, slow, throttling, requests that are lost,
// answers that are lost, conditions that are refused though they hold, requests that
// arrive minutes after their sender gave up or died, deletes that arrive twice.
// users_test.go has users who deploy, delete, claim, release, block, scale, trust,
// freeze and drain all the time, by whichever daemon answers.
//
// # What must hold
//
// model_test.go is told of every write in the order in which the store applies them,
// and knows what users were told: see its checks of the lease, placements,
// applications, claims, deploys, operators and the runtimes' objects. world_test.go
// looks, as time passes, at what no write shows: who may act as coordinator, what
// routes name, which processes run where they are not placed. Once the faults end,
// everything has to be at rest within a bounded time, to stay so while late requests
// still arrive, and to be what users were told.
//
// # A seed is a run
//
// Chance comes from the seed and from what it is for (dice_test.go), so that things
// which happen at once may draw in any order. Times are whole nanoseconds out of
// ranges, so that two things hardly ever happen at the very same moment; those that do
// run in the order in which they became ready, since a run has one thread that nothing
// interrupts. Runs are spread over the cores as processes (worker_test.go), whose Go
// leaves nothing to chance where seeds were asked for (exact_test.go).
// TestTheSameSeedIsTheSameRun holds it to that.
package sim
