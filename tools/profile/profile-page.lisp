;;;; A profile, or two, as one page in HTML that loads nothing else.

(in-package #:clgrpc.profile)

(defun share-cell (row)
  (percent (member-of row "share")))

(defun cpu-table (rows label)
  (page:table `((,label :text) ("share" :number) ("ms" :number) ("µs/call" :number))
              (map 'list (lambda (row)
                           (list (member-of row "name") (share-cell row)
                                 (milliseconds (member-of row "ns"))
                                 (microseconds (member-of row "nsPerCall"))))
                   rows)
              :label label))

(defun function-table (rows)
  (page:table '(("function" :text) ("share" :number) ("µs/call" :number)
                ("with callees, ms" :number :wide))
              (mapcar (lambda (row)
                        (list (member-of row "name") (share-cell row)
                              (microseconds (member-of row "nsPerCall"))
                              (milliseconds (member-of row "wholeNs"))))
                      (first-rows rows 60))
              :label "functions"))

(defun tally-table (rows title)
  (page:table `((,title :text) ("count" :number) ("per call" :number) ("failed" :number :wide)
                ("ms" :number) ("longest ms" :number :wide))
              (map 'list (event-cells "name" "count" "perCall" "failed" "ns" "longestNs") rows)
              :label title))

(defun wait-table (rows)
  (page:table '(("function that waits" :text) ("on which" :text) ("count" :number) ("ms" :number)
                ("longest ms" :number :wide))
              (map 'list (event-cells "name" "lock" "count" "ns" "longestNs") rows)
              :label "waits"))

(defun sleep-table (rows)
  (page:table '(("function that sleeps" :text) ("count" :number) ("per call" :number) ("ms" :number)
                ("longest ms" :number :wide))
              (mapcar (event-cells "name" "count" "perCall" "ns" "longestNs") (first-rows rows 30))
              :label "sleeps"))

(defun octet-table (rows title most)
  (page:table `((,title :text) ("octets a call" :number) ,@(when (member-of (elt rows 0) "share")
                                                             '(("share" :number))))
              (mapcar (lambda (row)
                        (list* (member-of row "name") (figure (member-of row "octetsPerCall"))
                               (when (member-of row "share") (list (share-cell row)))))
                      (first-rows rows most))
              :label title))

(defun difference-table (title differences)
  (page:table `((,title :text) ("before" :number) ("after" :number) ("unit" :wide)
                ("change" :number) (""))
              (mapcar (lambda (difference)
                        (let ((verdict (difference-verdict difference)))
                          (list (difference-name difference)
                                (figure (difference-before difference))
                                (figure (difference-after difference))
                                (difference-unit difference)
                                (change-text difference)
                                (if (string= verdict "same")
                                    ""
                                    ;; more is worse, but for calls a second
                                    `(:cell ,(if (eq (string= verdict "more")
                                                     (string= "/s" (difference-unit difference)))
                                                 "good"
                                                 "bad")
                                            ,verdict)))))
                      differences)
              :label title))

(defun profile-tiles (profile)
  (let* ((cpu (member-of profile "cpu"))
         (calls (member-of cpu "calls"))
         (known (and calls (plusp calls)))
         (explained (member-of cpu "explained"))
         (sum (share (total-ns (member-of cpu "phases")) (member-of cpu "kernelNs"))))
    (remove nil
            (list (and known (list "CPU a call" (format nil "~A µs" (microseconds
                                                                  (/ (member-of cpu "kernelNs")
                                                                     calls)))))
                  (and known (list "calls/s" (figure (round calls (member-of cpu "seconds")))))
                  (list "CPU" (percent (share (member-of cpu "kernelNs")
                                              (* 1000000000 (member-of cpu "seconds")))))
                  (list "samples explained" (percent explained)
                        (if (< explained 0.98) "bad" "good"))
                  (list "phases, of the kernel's CPU" (percent sum)
                        (if (<= 0.97 sum 1.03) "good" "bad"))
                  (and (member-of profile "counters" "octetsPerCall")
                       (list "octets a call"
                             (figure (member-of profile "counters" "octetsPerCall"))))
                  (and (member-of profile "events" "switchesPerCall")
                       (list "switches a call"
                             (figure (member-of profile "events" "switchesPerCall"))))))))

(defun counter-facts (counters)
  (page:facts
   (loop for (title name) in '(("turns" "turns") ("batons lent" "batonLent")
                               ("taken over" "batonTakenOver") ("collections" "collections"))
         collect (list title (figure (member-of counters name))))))

(defun profile-cards (profile)
  (let ((cpu (member-of profile "cpu")) (events (member-of profile "events"))
        (allocation (member-of profile "allocation"))
        (heap-histogram (member-of profile "heapHistogram"))
        (counters (member-of profile "counters")))
    (remove nil
            (list
             (page:card "Where the time goes" (list (flame-graph (member-of cpu "flame")
                                                                 "flame graph of all samples"))
                        :note "Callers are below; as wide as the time spent. Click to widen.")
             (page:card "CPU by subsystem" (list (cpu-table (member-of cpu "areas") "subsystem"))
                        :half t)
             (page:card "CPU by phase of a call"
                        (list (cpu-table (phases-in-order (member-of cpu "phases")) "phase")
                              (cpu-table (member-of cpu "threads") "thread"))
                        :half t
                        :note "“switch” is the time that the kernel counted between samples.")
             (page:card "Functions" (list (function-table (member-of cpu "functions"))))
             (and events
                  (page:card "System calls" (list (tally-table (member-of events "systemCalls")
                                                               "system call"))
                             :half t
                             :note (and (member-of events "slept")
                                        (format nil "Switches of thread: ~:D slept, ~:D were ~
                                                     preempted."
                                                (member-of events "slept")
                                                (member-of events "preempted")))))
             (and (member-of events "offCpu")
                  (page:card "Where threads sleep"
                             (list (flame-graph (member-of events "offCpu" "flame")
                                                "flame graph of the time off the processor")
                                   (sleep-table (member-of events "sleeps")))
                             :note "Callers are below. A frame is as wide as the time that threads
were off the processor in it, all threads together. Idle threads are the widest."))
             (and (plusp (length (member-of events "futexes")))
                  (page:card "Waits on locks and conditions"
                             (list (wait-table (member-of events "futexes")))
                             :half t))
             (and allocation
                  (page:card "Allocation by function"
                             (list (octet-table (member-of allocation "functions") "function" 20))
                             :half t :note "Sampled once per 32 KB allocated."))
             (and heap-histogram (plusp (length (member-of heap-histogram "kinds")))
                  (page:card "Allocation by subsystem and kind"
                             (list (octet-table (member-of heap-histogram "areas") "subsystem" 20)
                                   (octet-table (member-of heap-histogram "kinds") "kind" 30))
                             :half t))
             (and counters
                  (page:card "Counted by the process" (list (counter-facts counters))
                             :note (format nil "Collections stopped the threads for ~A ms in all."
                                           (milliseconds
                                            (member-of counters "collectionNs")))))))))

(defun write-profile-page (profile stream &key before)
  "Write PROFILE, which the function PROFILE has returned, to STREAM as a page in HTML. If BEFORE,
another profile, is given, the page shows both side by side."
  (page:write-page
   stream (profile-title profile)
   (format nil "~@[Load: ~A. ~]~,2F s, ~:D samples by ~A, clgrpc ~A." (member-of profile "load")
           (member-of profile "cpu" "seconds") (member-of profile "cpu" "samples")
           (member-of profile "cpu" "source") (member-of profile "version"))
   `((:style () ,*flame-style*)
     ,(page:tiles (profile-tiles profile))
     ,(when before
        (page:card "Before and after"
                   (loop for (title . differences) in (all-differences before profile)
                         collect (difference-table title differences))
                   :note "A figure that is neither more nor less is within the noise of sampling."))
     ,(when (and before (member-of before "cpu" "flame"))
        (page:card "Changes"
                   (list (flame-graph (member-of profile "cpu" "flame")
                                      "flame graph, coloured by change"
                                      :before (member-of before "cpu" "flame")))
                   :note "A frame is as wide as the time spent in it now; red has a larger share
than before, blue a smaller one."))
     ,(let ((lines (member-of profile "unseen")))
        (when (plusp (length lines))
          (page:card "Not seen" `((:ul () ,@(map 'list (lambda (line) `(:li () ,line)) lines))))))
     ,@(profile-cards profile)
     (:script () ,*flame-script*))))
