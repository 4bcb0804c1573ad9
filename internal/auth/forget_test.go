package auth_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/auth"
)

// A lookup that is under way while its key is forgotten answers its own caller, and
// is not kept for others.
func TestForgetWhileLookingUp(t *testing.T) {
	for name, forget := range map[string]func(v *auth.Verifier){
		"one": func(v *auth.Verifier) { v.Forget("op") },
		"all": (*auth.Verifier).ForgetAll,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRecords()
				r.addOperator(signer("op"), scafo.RoleOperator, "shop")
				v := newVerifier(r)
				r.slow = time.Second
				looked := make(chan error, 1)
				go func() {
					_, err := v.Identify(t.Context(), fresh(signer("op")))
					looked <- err
				}()
				time.Sleep(time.Second) // the record is read at this very moment
				forget(v)
				if err := <-looked; err != nil {
					t.Fatal(err)
				}
				r.set(func() { delete(r.operators, "op") })
				_, err := v.Identify(t.Context(), fresh(signer("op")))
				wantCode(t, err, scafo.CodeAuthInvalid)
			})
		})
	}
}

// A key that was just registered is let in where its id was asked for too early.
func TestForgetWhatIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecords()
		v := newVerifier(r)
		_, err := v.Identify(t.Context(), fresh(signer("op")))
		wantCode(t, err, scafo.CodeAuthInvalid)
		r.addOperator(signer("op"), scafo.RoleOperator, "shop")
		_, err = v.Identify(t.Context(), fresh(signer("op")))
		wantCode(t, err, scafo.CodeAuthInvalid)
		v.Forget("op")
		if _, err := v.Identify(t.Context(), fresh(signer("op"))); err != nil {
			t.Error(err)
		}
		// What is known, and not forgotten, is not looked up again.
		time.Sleep(time.Second)
		for range 2 {
			if _, err := v.Identify(t.Context(), fresh(signer("op"))); err != nil {
				t.Error(err)
			}
		}
		before := r.reads.Load()
		if _, err := v.Identify(t.Context(), fresh(signer("op"))); err != nil || r.reads.Load() != before {
			t.Errorf("%v, %d reads", err, r.reads.Load()-before)
		}
	})
}
