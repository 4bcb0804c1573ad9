package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// privateGoal is what an idle application may add, in MiB.
const privateGoal = 16

// private is the memory that would be free without the process and what it started,
// in bytes: what others share with them is not counted.
func private(pid int) (int64, error) {
	total, err := privateOf(pid)
	if err != nil {
		return 0, err
	}
	children, err := childrenOf(pid)
	if err != nil {
		return 0, err
	}
	for _, child := range children {
		n, err := private(child)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

func privateOf(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		name, rest, _ := strings.Cut(s.Text(), ":")
		if name != "Private_Clean" && name != "Private_Dirty" && name != "Private_Hugetlb" {
			continue
		}
		kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			return 0, err
		}
		total += kb << 10
	}
	return total, nil
}

func childrenOf(pid int) ([]int, error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // that thread has ended
		}
		for _, f := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				return nil, err
			}
			out = append(out, n)
		}
	}
	return out, nil
}
