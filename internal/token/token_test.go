package token_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/scafo/scafo"
	"github.com/scafo/scafo/internal/token"
	"github.com/scafo/scafo/internal/token/tokentest"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 500_000_000, time.UTC)

func signer(id string) tokentest.Signer {
	seed := sha256.Sum256([]byte(id))
	return tokentest.Signer{ID: id, Private: ed25519.NewKeyFromSeed(seed[:])}
}

func public(s tokentest.Signer) ed25519.PublicKey {
	k, _ := s.Private.Public().(ed25519.PublicKey)
	return k
}

// judge is the whole verdict on a token, as the verifier makes it, for one key.
func judge(s string, key ed25519.PublicKey, at time.Time) error {
	c, err := token.Parse(s)
	if err != nil {
		return err
	}
	if err := c.ValidAt(at); err != nil {
		return err
	}
	if !c.Verify(key) {
		return errors.New("signature")
	}
	return nil
}

func TestMintedTokenIsAccepted(t *testing.T) {
	s := signer("op-1")
	jti := [token.IDBytes]byte{1, 2, 3, 255, 254}
	minted := token.Mint(s.Private, "op-1", now, jti)
	c, err := token.Parse(minted)
	if err != nil {
		t.Fatal(err)
	}
	if c.KeyID != "op-1" || c.IssuedAt.Unix() != now.Unix() || c.Expires.Unix() != now.Unix()+60 {
		t.Errorf("claims %+v", c)
	}
	if want := base64.RawURLEncoding.EncodeToString(jti[:]); c.ID != want {
		t.Errorf("jti %q, want %q", c.ID, want)
	}
	if err := judge(minted, public(s), now); err != nil {
		t.Error(err)
	}
}

func TestMintFitsTheBound(t *testing.T) {
	id := strings.Repeat("a", scafo.MaxNameLength)
	minted := token.Mint(signer(id).Private, id, now, [token.IDBytes]byte{})
	if len(minted) > token.MaxLength/2 {
		t.Errorf("the longest token has %d characters", len(minted))
	}
}

// Tokens that other signers may well make.
func TestHonestVariantsAreAccepted(t *testing.T) {
	s := signer("op-1")
	claims := func(extra string) string {
		return fmt.Sprintf(`{"sub":"op-1","aud":"scafo-node","iat":%d,"exp":%d,"jti":"%s"%s}`, now.Unix(), now.Unix()+60, tokentest.JTI("x"), extra)
	}
	head := `{"alg":"EdDSA","kid":"op-1"}`
	for name, tok := range map[string]string{
		"typ":             tokentest.Sign(s.Private, `{"typ":"JWT","alg":"EdDSA","kid":"op-1"}`, claims("")),
		"white space":     tokentest.Sign(s.Private, " { \"alg\" : \"EdDSA\" ,\n\t\"kid\":\"op-1\" } ", claims("")),
		"an escape":       tokentest.Sign(s.Private, `{"alg":"EdDSA","kid":"\u006fp-1"}`, claims("")),
		"unknown claims":  tokentest.Sign(s.Private, head, claims(`,"iss":"op-1","n":-1.5e3,"ok":true,"none":null,"s":"a\"b}"`)),
		"nbf in the past": tokentest.Sign(s.Private, head, claims(fmt.Sprintf(`,"nbf":%d`, now.Unix()-600))),
	} {
		if err := judge(tok, public(s), now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTimesAtTheirLimits(t *testing.T) {
	s := signer("op-1")
	at := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		iat, exp time.Duration
		ok       bool
	}{
		{0, time.Second, true},
		{0, 60 * time.Second, true},
		{0, 61 * time.Second, false},
		{0, 0, false},
		{30 * time.Second, 60 * time.Second, true},
		{31 * time.Second, 60 * time.Second, false},
		{-60 * time.Second, -29 * time.Second, true},
		{-60 * time.Second, -30 * time.Second, false},
		{-89 * time.Second, -29 * time.Second, true},
	} {
		tok := tokentest.Sign(s.Private, `{"alg":"EdDSA","kid":"op-1"}`, fmt.Sprintf(`{"sub":"op-1","aud":"scafo-node","iat":%d,"exp":%d,"jti":"%s"}`,
			at.Add(c.iat).Unix(), at.Add(c.exp).Unix(), tokentest.JTI("x")))
		if err := judge(tok, public(s), at); (err == nil) != c.ok {
			t.Errorf("iat %v, exp %v: %v", c.iat, c.exp, err)
		}
	}
}

func TestBadTokensAreRefused(t *testing.T) {
	s, other, stranger := signer("op-1"), signer("op-2"), signer("op-9")
	bad := tokentest.All(s, other, stranger, now)
	if len(bad) < 60 {
		t.Fatalf("%d bad tokens, at least 60 are promised", len(bad))
	}
	names := map[string]bool{}
	for _, b := range bad {
		if names[b.Name] {
			t.Errorf("two cases are called %q", b.Name)
		}
		names[b.Name] = true
		if len(b.Authorization) != 1 {
			continue
		}
		tok, found := strings.CutPrefix(b.Authorization[0], "Bearer ")
		if !found {
			continue
		}
		key := public(s)
		if b.Name == "a stranger's own token" {
			continue // well made; nobody knows its key
		}
		if err := judge(tok, key, now); err == nil {
			t.Errorf("%s: accepted", b.Name)
		}
	}
}

// Any change of a token makes it another token, or none.
func TestChangedTokensAreRefused(t *testing.T) {
	s := signer("op-1")
	good := tokentest.Good(s, now, "good")
	if err := judge(good, public(s), now); err != nil {
		t.Fatal(err)
	}
	const characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \n\r\t%\x00"
	rapid.Check(t, func(t *rapid.T) {
		b := []byte(good)
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		with := characters[rapid.IntRange(0, len(characters)-1).Draw(t, "with")]
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			b[at] = with
		case 1:
			b = append(b[:at:at], b[at+1:]...)
		case 2:
			b = append(b[:at:at], append([]byte{with}, b[at:]...)...)
		}
		if string(b) != good && judge(string(b), public(s), now) == nil {
			t.Fatalf("accepted %q", b)
		}
	})
}

func FuzzParse(f *testing.F) {
	s := signer("op-1")
	f.Add(tokentest.Good(s, now, "seed"))
	for _, b := range tokentest.All(s, signer("op-2"), signer("op-9"), now) {
		for _, a := range b.Authorization {
			f.Add(strings.TrimPrefix(a, "Bearer "))
		}
	}
	f.Fuzz(func(t *testing.T, in string) {
		c, err := token.Parse(in)
		if err != nil {
			return
		}
		if !scafo.ValidName(c.KeyID) || len(c.ID) != 22 {
			t.Errorf("accepted %q with kid %q, jti %q", in, c.KeyID, c.ID)
		}
		if d := c.Expires.Sub(c.IssuedAt); d > token.MaxLifetime {
			t.Errorf("accepted a lifetime of %v", d)
		}
	})
}

func TestKeysOfSmallOrderAreRefused(t *testing.T) {
	p := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	// y of the points of order 8, as RFC 8032's curve has them: it, and its negative.
	order8, ok := new(big.Int).SetString("05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826", 16)
	if !ok {
		t.Fatal("no number")
	}
	ys := map[string]*big.Int{
		"order 1":                     big.NewInt(1),
		"order 2":                     new(big.Int).Sub(p, big.NewInt(1)),
		"order 4":                     big.NewInt(0),
		"order 8":                     order8,
		"order 8, the other":          new(big.Int).Sub(p, order8),
		"order 4, not canonical":      p,
		"order 1, not canonical":      new(big.Int).Add(p, big.NewInt(1)),
		"not canonical, at 2^255 - 1": new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(1)),
	}
	for name, y := range ys {
		for _, sign := range []byte{0, 0x80} {
			b := make([]byte, 32)
			y.FillBytes(b)
			for i := range 16 {
				b[i], b[31-i] = b[31-i], b[i]
			}
			b[31] |= sign
			_, err := token.ParsePublicKey(token.PublicJWK(b))
			if scafo.CodeOf(err) != scafo.CodeInvalidInput {
				t.Errorf("%s, sign %x: %v", name, sign, err)
			}
		}
	}
}

func TestPublicKeys(t *testing.T) {
	good := token.PublicJWK(public(signer("op-1")))
	if k, err := token.ParsePublicKey(good); err != nil || !bytes.Equal(k, public(signer("op-1"))) {
		t.Fatal(k, err)
	}
	for name, k := range map[string]scafo.PublicKey{
		"no kty":        {Crv: good.Crv, X: good.X},
		"kty EC":        {Kty: "EC", Crv: good.Crv, X: good.X},
		"crv X25519":    {Kty: good.Kty, Crv: "X25519", X: good.X},
		"no x":          {Kty: good.Kty, Crv: good.Crv},
		"x padded":      {Kty: good.Kty, Crv: good.Crv, X: good.X + "="},
		"x too short":   {Kty: good.Kty, Crv: good.Crv, X: good.X[1:]},
		"x with breaks": {Kty: good.Kty, Crv: good.Crv, X: good.X[:41] + "\n\n"},
		"x no base64":   {Kty: good.Kty, Crv: good.Crv, X: strings.Repeat("!", 43)},
	} {
		if _, err := token.ParsePublicKey(k); scafo.CodeOf(err) != scafo.CodeInvalidInput {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	s := signer("op-1")
	tok, key := tokentest.Good(s, now, "bench"), public(s)
	b.Run("bare", func(b *testing.B) {
		signed := tok[:strings.LastIndex(tok, ".")]
		sig, _ := base64.RawURLEncoding.DecodeString(tok[len(signed)+1:])
		for b.Loop() {
			if !ed25519.Verify(key, []byte(signed), sig) {
				b.Fatal("refused")
			}
		}
	})
	b.Run("token", func(b *testing.B) {
		for b.Loop() {
			if err := judge(tok, key, now); err != nil {
				b.Fatal(err)
			}
		}
	})
}
