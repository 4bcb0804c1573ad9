//go:build broken

package mistake

import "os"

// Env is the environment variable that names the mistake to make.
const Env = "SCAFO_MISTAKE"

var made = Mistake(os.Getenv(Env))

// Made is whether this program makes a mistake: the one that its environment names.
func Made(m Mistake) bool { return m == made }
