;;;; Runs against servers that fail, hang, go away and come back: counts add up and nothing hangs.

(in-package #:clgrpc.tests.load)
(in-suite :clgrpc.load.misbehaviour)

(defclass moody (routeguide:route-guide)
  ((counter :initform (list 0) :reader moody-counter)
   (mood :initarg :mood :reader moody-mood))
  (:documentation "GetFeature as MOOD, a function of the number of the call, has it."))

(defmethod routeguide.route-guide:get-feature ((service moody) point &key)
  (funcall (moody-mood service) (sb-ext:atomic-incf (car (moody-counter service))))
  (routeguide:make-feature :location point))

(defmacro with-moody-server ((address (number) &body mood) &body body)
  `(with-server (,address (make-instance 'moody :mood (lambda (,number)
                                                        (declare (ignorable ,number))
                                                        ,@mood)))
     ,@body))

(test half-of-the-calls-fail
  (with-moody-server (address (number)
                       (when (oddp number) (error 'grpc:resource-exhausted :message "no more")))
    (let ((run (load:perform-run (plan-for address :total 400 :workers 8 :connections 2))))
      (is (equal '("OK" 200 "ResourceExhausted" 200)
                 (sort-statuses (statuses-of run))))
      (is (consistent-p run))
      (is (equal '(("no more" . 200))
                 (load:status-row-messages
                  (find 8 (load:run-statuses run) :key #'load:status-row-code)))))))

(defun sort-statuses (plist)
  (loop for (name count) in (sort (loop for (name count) on plist by #'cddr
                                        collect (list name count))
                                  #'string< :key #'first)
        collect name collect count))

(test a-server-that-hangs
  "Calls end at their deadline, in an open loop and in a closed one."
  (with-moody-server (address (number) (sleep 1))
    (let* ((begin (base:monotonic-ns))
           (run (load:perform-run (plan-for address :total 20 :workers 10
                                                    :timeout-ns 100000000))))
      (is (equal '("DeadlineExceeded" 20) (statuses-of run)))
      (is (consistent-p run))
      (is (< (- (base:monotonic-ns) begin) 5000000000)))
    (let ((run (load:perform-run (plan-for address :total 50 :rate 500
                                                   :timeout-ns 100000000))))
      (is (equal '("DeadlineExceeded" 50) (statuses-of run)))
      (is (consistent-p run)))))

(test calls-at-the-end
  "What becomes of calls under way when the time is over is as the plan says."
  (with-moody-server (address (number) (sleep 0.5))
    (flet ((statuses (stop)
             (statuses-of (load:perform-run (plan-for address :workers 3 :duration-ns 100000000
                                                              :stop stop)))))
      (is (equal '("OK" 3) (statuses :wait)))
      (is (equal '("Unavailable" 3) (statuses :close)))
      (is (equal '() (statuses :ignore))))
    ;; the run has lasted its time, though no call ended then
    (let ((run (load:perform-run (plan-for address :workers 1 :duration-ns 700000000
                                                   :stop :ignore))))
      (is (<= 700000000 (load:run-duration-ns run))))))

(test calls-without-an-end-are-told
  "Of a run that is broken off, and of one that ignores what is under way at its end, the calls that
had not ended are told, with the age of the oldest; the rate is over the time in which calls began."
  (with-moody-server (address (number) (when (zerop (mod number 3)) (sleep 3)))
    (flet ((check (run begun)
             (is (< 0 (load:run-under-way run) begun))
             (is (= begun (+ (load:run-count run) (load:run-under-way run))))
             (is (consistent-p run))
             (is (< 400000000 (load:run-oldest-under-way-ns run)))))
      (let ((run (load:perform-run (plan-for address :rate 40 :duration-ns 500000000
                                                     :stop :ignore))))
        (check run 20)
        (is (< 400000000 (load:run-duration-ns run) 2000000000)))
      (let* ((begin (base:monotonic-ns)) (stopped nil)
             (run (load:perform-run
                   (plan-for address :rate 40 :duration-ns 60000000000)
                   :on-progress (lambda (control)
                                  (when (and (null stopped)
                                             (< (+ begin 500000000) (base:monotonic-ns)))
                                    (setf stopped t)
                                    (load::terminate-run control))))))
        (is (eq :terminated (load:run-ended-early run)))
        (check run (+ (load:run-count run) (load:run-under-way run)))
        (is (< (load:run-duration-ns run) 2000000000) "without the time of grace")
        (is (< 2000000000 (load:run-oldest-under-way-ns run)))))))

(test streams-that-the-server-does-not-allow
  "are the limit that is told, not the tool."
  (with-server (address (make-instance 'moody :mood (fn (_number) (sleep 0.01)))
                        :max-concurrent-streams 2)
    (let ((run (load:perform-run (plan-for address :rate 500 :total 200))))
      (is (equal '("OK" 200) (statuses-of run)))
      (is (eql 0 (search "the server's streams: " (load:run-limited run))))
      (is (search "allows 2 at once on each of 1 connection;" (load:run-limited run))))))

(test (a-closed-loop-tells-when-the-tool-stood-still :suite :clgrpc.load)
  (with-server (address (make-instance 'examples:route-guide))
    (let* ((posted nil)
           (run (load:perform-run
                 (plan-for address :workers 4 :duration-ns 600000000)
                 :on-progress (lambda (control)
                                (unless posted
                                  (setf posted t)
                                  (load::post-all control #'stand-still))))))
      (is-true posted)
      (is (search "event loops stood still for " (load:run-limited run))))))

(test who-was-late
  "The tool's lateness is compared with the latency: it is told where it is a tenth of that."
  (flet ((limited (latency-ns late-ns &key (typical-late-ns late-ns) (count 100))
           (flet ((histogram-of (most few)
                    (let ((histogram (load:make-histogram)))
                      (loop repeat 95 do (load:record-value histogram most))
                      (loop repeat 5 do (load:record-value histogram few))
                      histogram)))
             (let ((event-loop (loop:make-event-loop)))
               (unwind-protect
                    (load::why-limited
                     (load:make-run :count count :duration-ns 1000000000
                                    :all-latency (if (zerop count)
                                                     (load:make-histogram)
                                                     (histogram-of latency-ns latency-ns))
                                    :lateness (histogram-of typical-late-ns late-ns))
                     (load:make-plan :rate (load:make-schedule :start 100d0))
                     (list (load::make-generator :plan (load:make-plan) :loop event-loop)))
                 (loop:stop-event-loop event-loop)
                 (loop:join-event-loop event-loop))))))
    (is (null (limited 6000000 900000)))
    (is (null (limited 600000000 8000000)) "it is lost in the latencies")
    (is (search "of p99 and beyond, but not of p50" (limited 6000000 8000000
                                                             :typical-late-ns 51000)))
    (is (search "of p99 and of p50" (limited 6000000 8000000)))
    (is (null (limited 6000000 8000000 :count 0)) "no call has ended, so there is no p99")))

(test a-run-that-is-given-up
  "Neither connects again nor complains when its loops are stopped while connections are up."
  (with-moody-server (address (number) (sleep 0.5))
    (let* ((events '())
           (listener (fn (_level event &rest _more) (push event events))))
      (base:add-log-listener listener)
      (unwind-protect
           (signals simple-error
             (load:perform-run (plan-for address :workers 3 :duration-ns 2000000000)
                               :on-progress (fn (_control) (error "enough"))))
        (base:remove-log-listener listener))
      (is (not (member :closed-handler-error events))))))

(test a-server-that-stops
  "When the server goes away in the middle, the calls that are due afterwards fail, and the run ends
on time."
  (let ((server (grpc:start-server (make-instance 'examples:route-guide)
                                   :listen "127.0.0.1:0")))
    (unwind-protect
         (let* ((address (grpc:server-address server))
                (killer (in-thread
                          (loop until (< 100 (getf (grpc:server-statistics server) :calls))
                                do (sleep 0.01))
                          (grpc:stop-server server :drain 0)))
                (run (load:perform-run (plan-for address :rate 1000 :duration-ns 2000000000
                                                         :connections 2))))
           (sb-thread:join-thread killer)
           (is (= 2000 (load:run-count run)))
           (is (consistent-p run))
           (let ((statuses (sort-statuses (statuses-of run))))
             (is (equal "OK" (first statuses)))
             (is (< 80 (second statuses) 2000)) ; some of the first hundred may be open
             (is (equal "Unavailable" (third statuses)))))
      (grpc:stop-server server :drain 0))))

;;; Servers that break the protocol, by scripts

(defun seconds-of (function)
  "How long FUNCTION takes, in seconds."
  (let ((begin (base:monotonic-ns)))
    (funcall function)
    (/ (- (base:monotonic-ns) begin) 1d9)))

(defun check-runs (name wanted address &key (count 20) (timeout-ns 5000000000) (within-seconds 10))
  "Check that a closed loop and an open one of COUNT calls at ADDRESS end in time, and that all of
their calls ended with the status WANTED, a name, or as WANTED, a function of the run, checks."
  (loop for loop in '((:workers 4) (:rate 1000))
        do (let* ((run nil)
                  (seconds (seconds-of
                            (lambda ()
                              (setf run (load:perform-run
                                         (apply #'plan-for address :total count
                                                :timeout-ns timeout-ns loop)))))))
             (is (< seconds (support:patient-seconds within-seconds)) "~A: ~A s" name seconds)
             (is (= count (load:run-count run)) "~A: ~D calls" name (load:run-count run))
             (is (consistent-p run) "~A: ~A" name (statuses-of run))
             (if (functionp wanted)
                 (funcall wanted run)
                 (is (equal (list wanted count) (statuses-of run)) "~A: ~A, not ~A" name
                     (statuses-of run) wanted)))))

(defun check-script (name wanted answer &rest arguments &key opening &allow-other-keys)
  "CHECK-RUNS of a server that begins with OPENING and answers as ANSWER says, see
WITH-EVIL-SERVER."
  (with-evil-server (address :opening (or opening (opening-octets '(:settings) '(:settings-ack))))
      answer
    (apply #'check-runs name wanted address
           (loop for (key value) on arguments by #'cddr
                 unless (eq key :opening) collect key and collect value))))

(defun trailers-only (&rest fields)
  (apply #'answered-by-fields (apply #'response-fields fields)))

(test what-a-script-should-answer
  "So that what follows fails for the right reason."
  (check-script "good" "OK" (ok-and-then '("grpc-status" "0")))
  (check-script "bad" "NotFound" (trailers-only '("grpc-status" "5"))))

(test statuses-of-scripts
  (loop for (wanted . fields) in '(("Unknown" ("grpc-status" "17")) ("Unknown" ("grpc-status" "x"))
                                   ("Unknown" ("grpc-status" "5x")) ("Unknown" ("grpc-status" "+5"))
                                   ("Unknown" ("grpc-status" "")) ("Unknown" ("x" "y"))
                                   ("Unauthenticated" ("grpc-status" "16")))
        do (check-script fields wanted (apply #'ok-and-then fields)))
  (loop for (code . wanted) in '((301 . "Unknown") (400 . "Internal") (401 . "Unauthenticated")
                                 (403 . "PermissionDenied") (404 . "Unimplemented")
                                 (429 . "Unavailable") (500 . "Unknown") (503 . "Unavailable"))
        for fields = `((":status" ,(princ-to-string code)) ("content-type" "text/html"))
        do (check-script code wanted (apply #'answered-by-fields fields))
           (check-script code wanted (let ((fields fields))
                                       (frames (id) `(:headers ,id ,fields)
                                         `(:data ,id "<html>sorry" :end-stream)))))
  (check-script "no gRPC" "Unknown"
                (frames (id) `(:headers ,id ((":status" "200") ("content-type" "text/html")))
                  `(:data ,id "<html>" :end-stream))))

(test responses-that-are-none
  (flet ((answer (&rest octets)
           (frames (id) `(:headers ,id ,(response-fields))
             `(:data ,id ,(apply #'base:octets-of octets))
             `(:headers ,id (("grpc-status" "0")) :end-stream))))
    (check-script "no message" "Unimplemented" (answer))
    (check-script "two messages" "Unimplemented" (answer 0 0 0 0 0 0 0 0 0 0))
    (check-script "half a message" "Internal" (answer 0 0 0 0 9 1))
    (check-script "half a prefix" "Internal" (answer 0 0))
    (check-script "compressed, without a word of how" "Internal" (answer 1 0 0 0 0))
    (check-script "compressed, as it says" "OK"
                  (frames (id) `(:headers ,id ,(response-fields '("grpc-encoding" "gzip")))
                    `(:data ,id ,(base:octets-of 1 0 0 0 0))
                    `(:headers ,id (("grpc-status" "0")) :end-stream)))
    (check-script "a prefix that is none" "Internal" (answer 255 0 0 0 0))
    (check-script "no trailers" "Internal"
                  (frames (id) `(:headers ,id ,(response-fields))
                    `(:data ,id ,(base:octets-of 0 0 0 0 0) :end-stream)))
    (check-script "too large a header" "ResourceExhausted"
                  (apply #'trailers-only '("grpc-status" "0")
                         (loop repeat 10
                               collect (list "x" (make-string 3000 :initial-element #\v)))))))

(test resets-of-streams
  "A stream that was refused is tried again, once; other resets end their calls."
  (loop for code in '(0 1 2 5 7 8 11 12 13 255)
        for wanted = (case code
                       (7 "Unavailable") (8 "Canceled") (11 "ResourceExhausted")
                       (12 "PermissionDenied") (t "Internal"))
        do (let ((code code))
             (check-script (list :reset code) wanted (frames (id) `(:rst-stream ,id ,code)))
             (unless (= 7 code)
               (check-script (list :reset-in-response code) wanted
                             (frames (id) `(:headers ,id ,(response-fields))
                               `(:rst-stream ,id ,code))))))
  (let ((good (ok-and-then '("grpc-status" "0"))) (seen (list 0)))
    (check-script "every other refused"
                  (lambda (run)
                    (let ((statuses (statuses-of run)))
                      ;; a second try is refused as well if others came between
                      (is (<= 10 (getf-name "OK" statuses)))
                      (is (subsetp (remove-if #'integerp statuses) '("OK" "Unavailable")
                                   :test #'string=))))
                  (lambda (id)
                    (if (evenp (sb-ext:atomic-incf (car seen)))
                        `((:rst-stream ,id :refused-stream))
                        (funcall good id))))))

(defun getf-name (name plist)
  "What PLIST has for NAME, a string; 0 without it."
  (loop for (key value) on plist by #'cddr
        when (string= key name) return value
        finally (return 0)))

(test a-deadline-that-the-server-sees-first
  "A reset with CANCEL when the deadline has passed is that deadline, though our own timer has not
rung."
  (with-evil-server (address)
      (lambda (id) (sleep 0.4) (frames-of-reset id))
    (let ((run (load:perform-run
                (plan-for address :total 1 :workers 1 :timeout-ns 300000000)
                :on-progress (lambda (control)
                               (load::post-all
                                control
                                (lambda (generator)
                                  (clgrpc.loop:stop-timer
                                   (load::generator-loop generator)
                                   (load::generator-expiry-timer generator))))))))
      (is (equal '("DeadlineExceeded" 1) (statuses-of run))))))

(defun frames-of-reset (id)
  `((:rst-stream ,id 8)))

(test goaways
  (let ((good (ok-and-then '("grpc-status" "0"))))
    (check-script "each call is told that it was not processed" "Unavailable"
                  (frames (id) '(:goaway 0 :no-error)))
    (check-script "with an error" "Unavailable" (frames (id) '(:goaway 0 11) :close))
    (check-script "the first call of all that is processed is the last"
                  (lambda (run)
                    (is (< 1 (load:run-connects run)))
                    (is (<= 1 (getf-name "OK" (statuses-of run)))))
                  (lambda (id) (append (funcall good id) `((:goaway ,id :no-error)))))
    (check-script "each tenth call is the last of its connection, and processed" "OK"
                  (lambda (id)
                    (if (zerop (mod (1+ id) 20))
                        (append `((:goaway ,id :no-error)) (funcall good id))
                        (funcall good id)))
                  :count 15)
    (with-evil-server (address :opening (opening-octets '(:settings) '(:settings-ack)
                                                        '(:goaway 0 :no-error)))
        nil
      (let ((complaint (complaint-of address)))
        (is (search "GOAWAY from the server: NO_ERROR" complaint) "~A" complaint)))))

(test connections-that-end
  (check-script "reset" "Unavailable" (frames (id) :reset))
  (check-script "closed" "Unavailable" (frames (id) :close))
  (check-script "closed behind headers" "Unavailable"
                (frames (id) `(:headers ,id ,(response-fields)) :close))
  (check-script "reset in the middle of a message" "Unavailable"
                (frames (id) `(:headers ,id ,(response-fields))
                  `(:data ,id ,(base:octets-of 0 0 0 0 9 1)) :reset))
  (check-script "closed in the middle of a message" "Unavailable"
                (frames (id) `(:headers ,id ,(response-fields))
                  `(:data ,id ,(base:octets-of 0 0 0 0 9 1)) :close)))

(test broken-http2
  "What is wrong with a stream ends its call, what is wrong with the connection the calls on it."
  (loop for (wanted . answer)
          in (list
              (cons "Internal" (frames (id) `(:data ,id "x")))
              (cons "Internal" (frames (id) `(:headers ,id (("content-type" "application/grpc")))))
              (cons "Internal" (frames (id) `(:headers ,id ,(response-fields '("X" "y")))))
              (cons "Internal" (frames (id) `(:window-update ,id 0)))
              (cons "Unavailable" (frames (id) '(:window-update 0 #x7FFFFFFF)))
              (cons "Unavailable" (frames (id) `(:headers 2 ,(response-fields))))
              (cons "Unavailable" (frames (id) `(:headers ,id ,(base:octets-of 128))))
              (cons "Unavailable" (frames (id) `(:frame 5 4 ,id ,(base:octets-of 0 0 0 2))))
              (cons "Unavailable" (frames (id) `(:frame 0 0 0 ,(base:octets-of 1))))
              (cons "Unavailable" (frames (id) `(:frame 0 0 ,id ,(base:make-octets 16385))))
              (cons "Unavailable" (frames (id) `(:headers ,id ,(response-fields) :open)
                                    '(:ping 1)))
              (cons "Unavailable" (fn (_id) (flood-of 20000 '(:ping 7) '(:ping 7)))))
        for i from 0
        do (check-script i wanted answer)))

(test silence
  "Servers that never answer, or answer without end: deadlines end the calls."
  (loop for (name opening answer)
          in (list (list "only settings" nil nil)
                   (list "no streams" (opening-octets '(:settings (:max-concurrent-streams 0))) nil)
                   (list "no window" (opening-octets '(:settings (:initial-window-size 0))) nil)
                   (list "only headers" nil (frames (id) `(:headers ,id ,(response-fields))))
                   (list "half a message" nil
                         (frames (id) `(:headers ,id ,(response-fields))
                           `(:data ,id ,(base:octets-of 0 0 0 0 9 1))))
                   (list "some empty data" nil
                         (lambda (id)
                           (flood-of 5 `(:headers ,id ,(response-fields)) `(:data ,id "")))))
        do (check-script name "DeadlineExceeded" answer :opening opening :timeout-ns 100000000
                                                        :count 12)))

(defun most-unsent (control)
  "The most octets that a connection of CONTROL's generators has to send."
  (loop for generator in (load::control-generators control)
        maximize (loop for slot across (load::generator-connection-slots generator)
                       for connection = (load::connection-slot-connection slot)
                       when connection
                         maximize (loop:connection-unsent (load::connection-socket connection)))))

(test a-server-that-does-not-read
  "However many calls are due and end by their deadline, what waits to be sent is bounded: the calls
wait instead."
  (let ((over (sb-thread:make-semaphore)) (most 0))
    (with-evil-server (address)
        (fn (_id)
          (sb-thread:wait-on-semaphore over :timeout 60)
          '())
      (let ((run (load:perform-run
                  (plan-for address :workers 100 :duration-ns 1000000000 :timeout-ns 5000000
                                    ;; longer than the table of HPACK takes
                                    :request-metadata (vector (hpack:string-field
                                                               "x" (make-string 5000
                                                                                :initial-element
                                                                                #\x))))
                  :on-progress (lambda (control) (setf most (max most (most-unsent control)))))))
        (sb-thread:signal-semaphore over 1000000) ; for each request that came
        (is (< 1000000 most 2000000) "~D octets" most)
        (is (consistent-p run))))))

(defun complaint-of (address)
  "Why there is no run of calls at ADDRESS; \"\" if there is one."
  (handler-case (progn (load:perform-run (plan-for address :total 1 :workers 1)) "")
    (load:run-failed (error) (princ-to-string error))))

(test no-http2
  "What does not begin HTTP/2 makes no run, and its report says why."
  (loop for (opening . text) in `((,(base:ascii-octets "HTTP/1.1 400 Bad Request") . "HTTP/1.1")
                                  (:close . "closed")
                                  (,(opening-octets '(:ping 1)) . "PROTOCOL_ERROR"))
        do (with-evil-server (address :opening opening) nil
             (let ((complaint (complaint-of address)))
               (is (search text complaint) "~A: ~A" text complaint)
               (is (search address complaint)))))
  (with-evil-server (address :opening (base:octets-of)) nil
    (let ((options (clgrpc.option:make-channel-options :preface-timeout-seconds 1/5)))
      (is (< (seconds-of (lambda ()
                           (signals load:run-failed
                             (load:perform-run (plan-for address :total 1 :workers 1
                                                                 :options-of-http2 options)))))
             2)))))
