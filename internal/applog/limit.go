package applog

import "time"

// Limit lets so much text through in a time, and counts what it keeps back: a flood
// of lines must not become one of writes. It is a value with an owner: callers lock.
// The zero value lets everything through.
type Limit struct {
	// Rate is in bytes a second, Burst in bytes.
	Rate, Burst int64

	left    float64
	at      time.Time
	held    int64 // lines kept back and not told of yet
	choking bool
}

// resume is the part of a burst that has to be free again before a stream that was
// kept back goes on: so that it comes in pieces, and not as every hundredth line.
const resume = 0.1

// Take asks for the passage of one line of that size. told is how many lines before
// this one were kept back, which is to be said before it.
func (l *Limit) Take(size int, now time.Time) (ok bool, told int64) {
	if l.Rate == 0 {
		return true, 0
	}
	if l.at.IsZero() {
		l.left = float64(l.Burst)
	} else if d := now.Sub(l.at); d > 0 {
		l.left = min(float64(l.Burst), l.left+d.Seconds()*float64(l.Rate))
	}
	l.at = now
	if l.choking && l.left < resume*float64(l.Burst) || l.left < float64(size) {
		l.choking = true
		l.held++
		return false, 0
	}
	l.choking = false
	l.left -= float64(size)
	told, l.held = l.held, 0
	return true, told
}

// Held is how many lines were kept back and not told of; asking tells.
func (l *Limit) Held() int64 {
	n := l.held
	l.held = 0
	return n
}
