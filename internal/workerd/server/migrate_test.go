package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/workerd/instance"
	"github.com/scafo/scafo/internal/workerd/layout"
)

// A new version serves once its databases have their migrations; one whose migration
// fails does not, and leaves in order.
func TestMigrationsComeFirst(t *testing.T) {
	rt := deployed("v1")
	rt.durable, rt.migrations = true, []layout.Migrations{{Database: "d", Table: "t", Files: []layout.Migration{{Name: "1.sql"}}}}
	withServer(t, rt, Options{}, func(w *world) {
		w.wantVersion("v1")
		fails := func(err error, status int, kind Kind) {
			t.Helper()
			rt.mu.Lock()
			rt.migrateErr = err
			rt.mu.Unlock()
			if got, o := w.reload(); got != status || o.Kind != kind || o.Error != err.Error() {
				t.Errorf("%d %+v, want %d %s", got, o, status, kind)
			}
			w.wantVersion("v1")
			w.wantHealth(200)
		}
		rt.deploy("v2")
		fails(&instance.MigrationError{Database: "d", File: "1.sql", Sentence: "near \"TABEL\""}, 422, Failed)
		fails(fmt.Errorf("%w: it moves", instance.ErrDatabaseAway), 503, Unavailable)
		rt.mu.Lock()
		rt.migrateErr = nil
		left := slices.Clone(rt.reaped)
		rt.mu.Unlock()
		if want := []string{"-2 true", "-3 true"}; !slices.Equal(left, want) {
			t.Errorf("reaped %q, want %q", left, want)
		}
		if status, o := w.reload(); status != 200 || o.Kind != Adopted {
			t.Errorf("%d %+v", status, o)
		}
		w.wantVersion("v2")
		if want := []string{"v1", "v2", "v2", "v2"}; !slices.Equal(rt.migrated, want) {
			t.Errorf("migrated %q, want %q", rt.migrated, want)
		}
		time.Sleep(time.Minute) // the old one leaves
	})
}
