//go:build !broken

package mistake

// Made is whether this program makes a mistake: none.
func Made(Mistake) bool { return false }
