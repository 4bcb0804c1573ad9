package wrangler

import (
	"reflect"
	"testing"
)

func TestMigrationsInOrder(t *testing.T) {
	got := Migrations([]string{"10_last.sql", "2_b.sql", "meta", "0001_init.sql", "schema.sql", "2_a.sql", "._2_a.sql", "0003.SQL", "readme.md", ".sql", "00000000000000000000000000000000001_big.sql"})
	want := []string{"00000000000000000000000000000000001_big.sql", "0001_init.sql", "2_a.sql", "2_b.sql", "10_last.sql", "schema.sql"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
