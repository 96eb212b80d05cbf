;;;; The page in a browser: Chromium without a window, which browser.mjs drives. What it shows
;;;; agrees with the metrics, it asks nobody else for anything, nothing goes wrong in it, a call in
;;;; trouble can be found, what peers say stays text, and it can be used and read. The environment
;;;; variable CLGRPC_PICTURES names a directory for pictures of it, which are those of
;;;; doc/tools/console.md; then calls are made for a while before.

(in-package #:clgrpc.tests.console)

(defun make-calls (channel seconds)
  "Calls of all kinds, for SECONDS, on several threads: short ones, some that take long, some that
fail."
  (let ((end (+ (monotonic-ns) (seconds-ns seconds))))
    (with-threads (thread 4)
      (loop for i from 1
            while (< (monotonic-ns) end)
            do (caught (ask channel (note (cond ((zerop (mod i 199)) 0)
                                                ((zerop (mod i 97)) (- (mod (* 7 i) 80)))
                                                ((zerop (mod i 13)) (- (mod i 3)))
                                                (t 1)))))
               (when (zerop (mod i 20)) (sleep (/ (+ 4 (mod (floor i 500) 9)) 1000)))))))

(defun totals (console family attribute)
  "How many calls the metrics of CONSOLE have in FAMILY, by ATTRIBUTE, as the browser tells them."
  (let ((sums '()))
    (dolist (family (metrics:collect (console:console-metrics console) :names (list family)))
      (dolist (point (metrics:family-points family))
        (let ((name (cdr (assoc attribute (metrics:point-attributes point) :test #'string=))))
          (incf (getf (cdr (or (assoc name sums :test #'string=)
                               (first (push (list name :count 0) sums))))
                      :count)
                (metrics:point-count point)))))
    (sort (loop for (name nil count) in sums collect (cons name count)) #'string< :key #'car)))

(defun look-with-browser (console server)
  "What Chromium has seen of CONSOLE, which SERVER shows."
  (parse-json
   (support:look-with-browser
    "tests/tools/console/browser.mjs" (console:console-url console server)
    (princ-to-string (reduce #'+ (totals console "grpc.server.call.duration" "grpc.status")
                             :key #'cdr))
    (or (uiop:getenvp "CLGRPC_PICTURES") ""))))

(defparameter *evil*
  (format nil "not you</script><img src=x onerror=\"window.hacked=1\"><svg onload=\"hacked=2\">~
               ~%~%event: hello~%data: {}~%~%")
  "What a peer may say.")

(defun say-evil (channel server console)
  "Say it where peers can: in messages, methods and the log."
  ;; of failures only so many a second are kept
  (is-true (wait-until (lambda ()
                         (caught (ask channel (note 1 :text *evil*)))
                         (find "PERMISSION_DENIED" (kept-plists console)
                               :key (lambda (sample) (getf sample :status)) :test #'string=))))
  (with-raw-client (peer (grpc:server-address server))
    (ask-raw peer "/<img src=x onerror=window.hacked=3>/x"))
  (log-event :warning :example :reason *evil*))

(defun sorted-members (object)
  (sort (copy-list object) #'string< :key #'car))

(defun check-what-was-seen (seen console server)
  (flet ((seen (name) (in-json seen name)))
    (is (equalp #() (seen "errors")))
    (is-true (eq :true (seen "live")))
    (let ((place (format nil "http://~A/console/" (grpc:server-address server))))
      (is (string= place (seen "address")) "the token is in no address")
      (is (every (lambda (request) (or (string= "data:," request) (eql 0 (search place request))))
                 (seen "requests"))
          "It asks elsewhere: ~S" (seen "requests")))
    (is-true (eq :true (seen "agreed")))
    (is (equal (totals console "grpc.server.call.duration" "grpc.status")
               (sorted-members (seen "statuses"))))
    (is (equal (totals console "grpc.server.call.duration" "grpc.method")
               (sorted-members (seen "methods"))))
    (is (<= 10 (seen "calls")))
    (is (string= "Only calls with PERMISSION_DENIED" (seen "onlyText")))
    (is (equalp #("PERMISSION_DENIED") (seen "onlyStatuses")))
    (is (search "status=PERMISSION_DENIED" (seen "fragment")))
    (is (search "which=failed" (seen "fragment")))
    (is (equalp #("example") (seen "found")))
    (is (equalp #("60" "") (seen "recalled")))
    (is (search "Only calls that ended from " (seen "moment")))
    (is-true (eq :true (seen "life")))
    (is (search "lab.Bench/Ask" (seen "lifeText")))
    (is-true (eq :true (seen "closed")))
    ;; a call that hangs, and one that has failed
    (is (string= "1" (seen "open")))
    (is (equal '(("lab.Bench/Ask" . "1") ("other" . "0")) (sorted-members (seen "openOf"))))
    (is (equalp #("1" "1") (seen "busy")) "its connection, and that of the page")
    (dolist (text (list "lab.Bench/Ask" "PERMISSION_DENIED" "127.0.0.1:"
                        "not you</script><img src=x onerror=\"window.hacked=1\">"))
      (is (search text (seen "failedText")) "~S is not in ~S" text (seen "failedText")))
    (is (search "not you</script><img src=x" (seen "logText")))
    (is (eql 0 (seen "foreign")))
    (is-true (eq :false (seen "hacked")))
    (is (search "a second" (seen "reading")))
    (is (<= 1 (seen "hour")) "frames of the last hour")
    (is (string= "Failed in an hour" (seen "hourTile")))
    (is (search "a second" (seen "hourReading")))
    (is (equal (totals console "grpc.server.call.duration" "grpc.status")
               (sorted-members (seen "hourStatuses")))
        "totals do not depend on the span")
    (is-true (eq :true (seen "options")))
    (is (equalp #() (seen "nameless")))
    (is (equalp #() (seen "faint")))
    (loop for (how . excess) in (seen "wide")
          do (is (<= excess 0) "The page is wider than the window: ~A" how))
    (is (string= "paused" (seen "paused")))))

(test a-browser-shows-it
  (with-shown (console server channel)
    (make-calls channel 0.3)
    (log-event :info :example :reason "an event for the log's tail")
    (when (uiop:getenvp "CLGRPC_PICTURES")
      ;; somebody looks meanwhile, so that the page has a past
      (with-events (stream console server)
        (dotimes (i 4) (make-calls channel 25))))
    (say-evil channel server console)
    (console::take-look (console::console-hour console) (console:console-metrics console)
                        (monotonic-ns))
    (let ((hanging (in-thread (caught (ask channel (note 1 :text "hang") :timeout 120)))))
      (unwind-protect (check-what-was-seen (look-with-browser console server) console server)
        (signal-it *release*)
        (sb-thread:join-thread hanging)))))
