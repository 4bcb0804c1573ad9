package deploy

import (
	"testing"
	"time"

	"github.com/scafo/scafo"
)

// A slot that cannot be freed here costs a look now and then, and the deploy that waits
// for it comes to its end.
func TestASlotThatStaysHeldIsNotAskedForWithoutAPause(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		n := w.start("a").run()
		defer n.stop()
		n.deploy("shop", "v1")
		now := n.reg.Now()
		held := scafo.Deploy{
			DeployStatus: scafo.DeployStatus{ID: "shop.0123456789abcdef", Application: "shop", State: scafo.DeployFailed, Code: scafo.CodePublishFailed, Detail: "of another life"},
			UID:          "another", Node: "a", AcceptedAt: now, MovedAt: now, FinishedAt: &now,
		}
		if err := n.reg.CreateDeploy(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		hold := func(by *scafo.Publishing) {
			if _, err := n.reg.UpdateApplication(t.Context(), "shop", func(a *scafo.Application) error { a.Publishing = by; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		hold(&scafo.Publishing{Deploy: held.ID, Seq: 1})
		begun := time.Now()
		st := n.await(n.mustAccept("shop", project(t, "v2")))
		if st.State != scafo.DeployFailed || st.Code != scafo.CodeDeployTimeout || time.Since(begun) < testLimits.Wait {
			t.Errorf("ended as %+v after %v", st, time.Since(begun))
		}
		hold(nil)
		if st := n.deploy("shop", "v3"); st.State != scafo.DeployDeployed {
			t.Errorf("once it is free: %+v", st)
		}
		w.check(n)
	})
}
