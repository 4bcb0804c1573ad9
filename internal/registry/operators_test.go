package registry_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/bucket/fault"
	"github.com/scafo/scafo/internal/bucket/memory"
	"github.com/scafo/scafo/internal/registry"
	"github.com/scafo/scafo/internal/registry/check"
)

// Whoever made the fleet died before the index: the first change of operators
// completes it, and the founder stays the last admin.
func TestOperatorsOfAFleetWithoutIndex(t *testing.T) {
	b := memory.New()
	store := fault.New(b)
	store.Next(fault.Create, registry.OperatorIndexKey, fault.CrashBefore)
	if _, err := open(store).InitFleet(t.Context(), admin("root")); err == nil {
		t.Fatal("it did not die")
	}
	r := open(b)
	wantCode(t, remove(r, "root"), scafo.CodeReferenceHeld)
	if _, _, err := r.AddOperator(t.Context(), tenant("ci")); err != nil {
		t.Fatal(err)
	}
	wantCode(t, remove(r, "root"), scafo.CodeReferenceHeld)
	if err := remove(r, "ci"); err != nil {
		t.Fatal(err)
	}
	check.Bucket(t, b)
	_, _, err := open(memory.New()).AddOperator(t.Context(), tenant("ci"))
	wantCode(t, err, scafo.CodeNotFound) // no fleet at all
}

// An admin whose registration died before the index is trusted and not listed. It
// is never counted on: the listed one cannot go, the other can.
func TestAnAdminThatIsNotListed(t *testing.T) {
	r, b := fleet(t)
	store := fault.New(b)
	store.Next(fault.Replace, registry.OperatorIndexKey, fault.CrashBefore)
	if _, _, err := open(store).AddOperator(t.Context(), admin("second")); err == nil {
		t.Fatal("it did not die")
	}
	if _, err := r.Operator(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, remove(r, "root"), scafo.CodeReferenceHeld)
	if err := remove(r, "second"); err != nil {
		t.Fatal(err)
	}
	if _, created, err := r.AddOperator(t.Context(), admin("second")); err != nil || !created {
		t.Fatal(created, err)
	}
	if err := remove(r, "root"); err != nil {
		t.Error(err)
	}
}

// A removal that died between the index and the record: the key is revoked by the
// next removal, or comes back whole when it is registered again.
func TestRemovalsThatDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, again := range []bool{false, true} {
			r, b := fleet(t)
			if _, _, err := r.AddOperator(t.Context(), admin("second")); err != nil {
				t.Fatal(err)
			}
			store := fault.New(b)
			store.Next(fault.Replace, registry.OperatorKey("second"), fault.CrashBefore)
			if _, err := open(store).RemoveOperator(t.Context(), "second"); err == nil {
				t.Fatal("it did not die")
			}
			wantCode(t, remove(r, "root"), scafo.CodeReferenceHeld)
			if again {
				if _, created, err := r.AddOperator(t.Context(), admin("second")); err != nil || !created {
					t.Fatal(created, err)
				}
			}
			if err := remove(r, "second"); err != nil {
				t.Fatal(err)
			}
			index, err := registry.Load[scafo.OperatorIndex](t.Context(), r, registry.OperatorIndexKey)
			if err != nil || len(index.Value.Operators) != 1 || len(index.Value.Removing) != 0 {
				t.Errorf("%+v %v", index.Value, err)
			}
		}
		time.Sleep(time.Minute) // what may have happened is still being announced
	})
}

// The mark of a complete removal that could not be taken away does no harm.
func TestAMarkThatStays(t *testing.T) {
	r, b := fleet(t)
	if _, _, err := r.AddOperator(t.Context(), tenant("ci")); err != nil {
		t.Fatal(err)
	}
	store := fault.New(b)
	store.Inject(fault.Rule{Op: fault.Replace, Key: registry.OperatorIndexKey, Skip: 1, Kind: fault.Denied})
	if removed, err := open(store).RemoveOperator(t.Context(), "ci"); err != nil || !removed {
		t.Fatal(removed, err)
	}
	wantCode(t, remove(r, "ci"), scafo.CodeNotFound)
	if _, created, err := r.AddOperator(t.Context(), tenant("ci")); err != nil || !created {
		t.Fatal(created, err)
	}
	if err := remove(r, "ci"); err != nil {
		t.Fatal(err)
	}
}
