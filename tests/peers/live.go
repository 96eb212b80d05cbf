package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

// A record is what a server with much live data has much of; bench/ours/live.lisp has the same.
type record struct {
	id    int
	name  string
	price float64
}

func newRecord(id int) *record {
	return &record{id, fmt.Sprintf("record %09d", id), float64(id)}
}

// live keeps a table of count records, of which it replaces some each second. When all are there it
// answers lines of standard input as tellAtEachLine says.
func live(count, perSecond int) {
	var lock sync.Mutex
	records := map[int]*record{}
	renew := func(id int) {
		lock.Lock()
		records[id] = newRecord(id)
		lock.Unlock()
	}
	for id := range count {
		renew(id)
	}
	runtime.GC()
	go tellAtEachLine()
	for id, i := 0, 1; ; id, i = (id+7919)%count, i+1 {
		renew(id)
		if i%((perSecond+99)/100) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// tellAtEachLine prints `heap=N stopped=N` for each line of standard input: the octets in use,
// garbage included, and the milliseconds of the longest pause since the line before.
func tellAtEachLine() {
	seen := uint32(0)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		longest := uint64(0)
		for i := seen; i < stats.NumGC; i++ {
			longest = max(longest, stats.PauseNs[i%256])
		}
		seen = stats.NumGC
		fmt.Printf("heap=%d stopped=%.2f\n", stats.HeapAlloc, float64(longest)/1e6)
	}
}
