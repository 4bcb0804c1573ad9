package publish

import (
	"errors"
	"fmt"
	"strings"

	"github.com/scafo/scafo/internal/bucket/s3"
)

// flags are the arguments of `deploy`.
type flags struct {
	project        string
	bucket, prefix string
	endpoint       string
	region         string
	dryRun, json   bool
	help           bool
}

// parseFlags reads the arguments. A value is an argument of its own:
// --flag=value is not taken.
func parseFlags(args []string) (flags, error) {
	f := flags{}
	var target string
	values := map[string]*string{"--bucket": &target, "--endpoint": &f.endpoint, "--region": &f.region}
	switches := map[string]*bool{"--dry-run": &f.dryRun, "--json": &f.json, "--help": &f.help, "-h": &f.help}
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch v, s := values[a], switches[a]; {
		case s != nil:
			*s = true
		case v != nil && *v != "":
			return flags{}, fmt.Errorf("%s is given twice", a)
		case v != nil:
			if i++; i == len(args) || args[i] == "" || strings.HasPrefix(args[i], "--") {
				return flags{}, fmt.Errorf("%s needs a value", a)
			}
			*v = args[i]
		case strings.HasPrefix(a, "-"):
			return flags{}, fmt.Errorf("unexpected argument %q", a)
		case f.project != "":
			return flags{}, fmt.Errorf("unexpected argument %q: one project at a time", a)
		default:
			f.project = a
		}
	}
	if f.help {
		return f, nil
	}
	if f.project == "" {
		f.project = "."
	}
	if target == "" {
		return flags{}, errors.New("--bucket is missing")
	}
	if !strings.HasPrefix(target, "s3://") {
		target = "s3://" + target
	}
	var err error
	if f.bucket, f.prefix, err = s3.ParseURL(target); err != nil {
		return flags{}, fmt.Errorf("--bucket: %w", err)
	}
	return f, nil
}

// where is the bucket and its prefix for people.
func (f flags) where() string {
	s := "s3://" + f.bucket
	if p := strings.Trim(f.prefix, "/"); p != "" {
		s += "/" + p
	}
	return s
}
