package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/scafo/scafo"
)

// Who asks for help gets it, and who mistypes a command is told which it may have been,
// with the exit code of a mistake.
func TestHelpAndMistypedCommands(t *testing.T) {
	for args, want := range map[string]struct {
		code      int
		out, errs string
	}{
		"--version":        {0, "scafo " + scafo.Version + "\n", ""},
		"help":             {0, "Available Commands:", ""},
		"help deploy":      {0, "scafo deploy [DIR] [flags]", ""},
		"help apps block":  {0, "scafo apps block NAME [flags]", ""},
		"apps help":        {0, "scafo apps [command]", ""},
		"apps":             {0, "scafo apps [command]", ""},
		"deplyo":           {2, "", `scafo has no command "deplyo"; did you mean deploy or deploys?`},
		"freze on":         {2, "", `scafo has no command "freze"; did you mean freeze?`},
		"apps lst":         {2, "", `scafo apps has no command "lst"; did you mean list?`},
		"apps xxxxxxx":     {2, "", "scafo apps has no command \"xxxxxxx\"\n`scafo apps --help` lists them"},
		"help nope":        {2, "", `scafo has no command "nope"`},
		"help apps nope":   {2, "", `scafo apps has no command "nope"`},
		"--json apps nope": {2, "", `scafo apps has no command`},
	} {
		var out, errs bytes.Buffer
		code := execute(t.Context(), strings.Fields(args), &out, &errs)
		said := out.String() + errs.String()
		if code != want.code || !strings.Contains(out.String(), want.out) || want.errs != "" && !strings.Contains(strings.ReplaceAll(said, `\"`, `"`), want.errs) {
			t.Errorf("%s: exit code %d, output %q %q", args, code, out.String(), errs.String())
		}
	}
}
