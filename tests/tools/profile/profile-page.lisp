;;;; Profiles as pages.

(in-package #:clgrpc.tests.profile)

(defun node (name area ns &rest children)
  `(("name" . ,name) ("area" . ,area) ("ns" . ,ns)
    ,@(when children `(("children" . ,(coerce children 'vector))))))

(defun flame-text (root)
  (clgrpc.page:markup-text (profile::flame-graph root "all")))

(test flames
  (let ((text (flame-text (node "all" :null 1000
                                (node "a < b" "http2" 750 (node "leaf" "kernel: tcp" 250))
                                (node "short" "server" 240)
                                (node "too short to be seen" "server" 1/2)))))
    (is (search "height=\"51\"" text) "three frames lie above each other")
    (is (search "a &lt; b, http2: " text))
    (is (search "75.0 %" text))
    (is (search "x=\"75.000%\"" text) "who comes next stands behind")
    (is (not (search "too short" text))))
  (is (search "flame" (flame-text (node "all" :null 0)))))

(test pages
  (let ((text (with-output-to-string (stream)
                (profile:write-profile-page
                 (append (some-profile) '(("command" . #("serve" "<bench>"))))
                 stream :before (some-profile :server-ns 50000000)))))
    (dolist (part '("Profile of clgrpc serve &lt;bench&gt;" "CPU by subsystem" "http2"
                    "Before and after" "more" "class=\"flame\""))
      (is (search part text) "~A is missing" part))
    (is (search "Profile of process 7" (with-output-to-string (stream)
                                         (profile:write-profile-page
                                          (acons "pid" 7 (remove "pid" (some-profile) :test #'equal
                                                                                      :key #'car))
                                          stream))))
    (dolist (part '("http://" "https://" "src="))
      (is (not (search part text)) "the page asks for ~A" part))))

(defun some-whole-profile ()
  "A profile that has something in each part."
  (append
   (some-profile)
   (base:parse-json
    (base:write-json
     `(("command" . #("serve" "bench")) ("load" . "bench-client")
       ("events"
        ("source" . "perf") ("seconds" . 1d0) ("calls" . 1000) ("slept" . 20) ("preempted" . 1)
        ("switchesPerCall" . 0.02d0)
        ("systemCalls" . #((("name" . "epoll_wait") ("count" . 20) ("failed" . 0)
                            ("perCall" . 0.02d0) ("ns" . 9000000) ("longestNs" . 1000000))))
        ("futexes" . #((("name" . "clgrpc.server::wait-for-links") ("count" . 1) ("failed" . 0)
                        ("lock" . "condition clgrpc server") ("perCall" . 0.001d0)
                        ("ns" . 9000000) ("longestNs" . 9000000)))))
       ("counters" ("calls" . 1000) ("turns" . 30) ("consed" . 200000) ("octetsPerCall" . 200d0)
                   ("collections" . 1) ("collectionNs" . 4000000)
                   ("longestCollectionNs" . 4000000) ("batonLent" . 10) ("batonTakenOver" . 0))
       ("allocation" ("samples" . 10) ("octetsPerCall" . 200d0)
                     ("functions" . #((("name" . "clgrpc.server::make-server-call")
                                       ("share" . 0.9d0) ("octetsPerCall" . 180d0))))))))))

(test parts-of-profiles-as-text
  "Beside the processor's: events, counters, allocation, the heap, and what is missing."
  (let ((profile (append `(("heapHistogram"
                            ("octetsPerCall" . 12d0)
                            ("areas" . #((("name" . "server") ("octetsPerCall" . 8d0))))
                            ("kinds" . #((("name" . "cons") ("octetsPerCall" . 8d0)
                                          ("objectsPerCall" . 0.5d0)))))
                           ("unseen" . #("locks: there is no perf")))
                         (some-whole-profile))))
    (support:check-record
     'profile-parts
     (with-output-to-string (stream)
       (loop for (name function) in '(("events" profile::write-events)
                                      ("counters" profile::write-counters)
                                      ("allocation" profile::write-allocation)
                                      ("heapHistogram" profile::write-histogram))
             do (funcall function stream (cdr (assoc name profile :test #'string=))))
       (profile:write-missing stream profile)))))

(test each-table-has-a-name
  "For readers who do not see what is above it."
  (let ((text (with-output-to-string (stream)
                (profile:write-profile-page (some-whole-profile) stream
                                            :before (some-profile)))))
    (support:check-record 'profile-page text)
    (dolist (name '("system call" "waits" "functions"))
      (is (search (format nil "aria-label=~S" name) text) "~A" name))
    (is (not (search "aria-label=\"Table\"" text)))))

(test scripts-and-styles-need-no-escapes
  "Text of a page is escaped, that of its script as well."
  (dolist (text (list profile::*flame-script* profile::*flame-style*))
    (is (null (find-if (lambda (char) (find char "<>&\"")) text)))))

(test a-browser-shows-it
  (let ((seen (look-with-browser
               (with-output-to-string (stream)
                 (profile:write-profile-page (some-whole-profile) stream
                                             :before (some-profile :server-ns 50000000)))
               "profile")))
    (when seen
      (check-page seen)
      (is (find "Waits on locks and conditions" (cdr (assoc "headings" seen :test #'string=))
                :test #'string=)))))
