;;;; The counts of calls, at both ends.

(in-package #:clgrpc.tests.metrics)

(defmacro with-metrics ((channel client server &rest handlers) &body body)
  "Evaluate BODY with CHANNEL to a probe with HANDLERS; CLIENT and SERVER are their metrics."
  (let ((probe (gensym "PROBE")))
    `(let* ((,client (grpc:make-metrics :enable t))
            (,server (grpc:make-metrics))
            (,probe (start-probe (list ,@handlers) :observer ,server)))
       (unwind-protect
            (grpc:with-channel (,channel (grpc:server-address ,probe) :observer (list ,client))
              ,@body)
         (grpc:stop-server ,probe :drain 0)))))

(defun ended-p (metrics name count)
  (wait-until (lambda () (= count (reduce #'+ (points metrics name)
                                          :key (lambda (point) (first (last point))))))))

(test calls-by-method-and-status
  (with-metrics (channel client server
                         :ask (handling (note)
                                (if (= 13 (number-of note))
                                    (grpc:fail :not-found "no")
                                    (note (* 2 (number-of note)))))
                         :chat #'echo)
    (loop repeat 3 do (ask channel (note 4)))
    (handler-case (ask channel (note 13)) (grpc:not-found () nil))
    (numbers (chat channel (list (note 1) (note 2))))
    (is-true (ended-p client "grpc.client.attempt.duration" 5))
    (is-true (ended-p server "grpc.server.call.duration" 5))
    (let ((ended '(("lab.Bench/Ask" "NOT_FOUND" 1) ("lab.Bench/Ask" "OK" 3)
                   ("lab.Bench/Chat" "OK" 1)))
          (started '(("lab.Bench/Ask" 4) ("lab.Bench/Chat" 1))))
      (dolist (name '("grpc.client.attempt.duration" "grpc.client.call.duration"
                      "grpc.client.attempt.sent_total_compressed_message_size"
                      "grpc.client.attempt.rcvd_total_compressed_message_size"))
        (is (equal ended (points client name)) "~A" name))
      (dolist (name '("grpc.server.call.duration"
                      "grpc.server.call.sent_total_compressed_message_size"
                      "grpc.server.call.rcvd_total_compressed_message_size"))
        (is (equal ended (points server name)) "~A" name))
      (is (equal started (points client "grpc.client.attempt.started")))
      (is (equal started (points server "grpc.server.call.started"))))
    (flet ((sum (metrics name)
             (reduce #'+ (metrics:family-points (family metrics name)) :key #'metrics:point-sum)))
      (is (= (sum client "grpc.client.attempt.sent_total_compressed_message_size")
             (sum server "grpc.server.call.rcvd_total_compressed_message_size")))
      (is (= (sum client "grpc.client.attempt.rcvd_total_compressed_message_size")
             (sum server "grpc.server.call.sent_total_compressed_message_size")))
      (is (< 0 (sum client "grpc.client.call.duration") 60)))
    (is (equal '((1)) (points client "grpc.subchannel.open_connections")))
    (is (equal '((1)) (points server "clgrpc.server.connections")))))

(test loops-are-told-of
  "A server's metrics have the octets its loops receive and send, and their waiting and lending."
  (with-metrics (channel client server :ask #'double)
    (flet ((number (name)
             (reduce #'+ (metrics:family-points (family server name))
                     :key #'metrics:point-value)))
      (loop repeat 5 do (ask channel (note 4 :body 1000)))
      (let ((received (number "clgrpc.loop.received")))
        (is (< 5000 received 8000))
        (is (< 0 (number "clgrpc.loop.sent")))
        (ask channel (note 4 :body 1000))
        (is (< 1000 (- (number "clgrpc.loop.received") received) 1500)))
      (is (< 0 (number "clgrpc.loop.waiting") 60))
      (is (<= 0 (number "clgrpc.loop.spinning") (number "clgrpc.loop.waiting")))
      (is (<= 6 (number "clgrpc.loop.batons_lent")))
      (is (<= 0 (number "clgrpc.loop.batons_lost") (number "clgrpc.loop.batons_lent")))
      (is (equal '("busy" "idle")
                 (mapcar (lambda (point) (cdr (first (metrics:point-attributes point))))
                         (metrics:family-points (family server "clgrpc.reserve.threads"))))))))

(test a-loop-that-is-held-up-loses-its-baton
  (with-metrics (channel client server
                         :ask (handling (note)
                                (sleep 1)
                                note))
    (let ((slow (in-thread (ask channel (note 1)))))
      (ask channel (note 2))
      (sb-thread:join-thread slow))
    (is (plusp (reduce #'+ (metrics:family-points (family server "clgrpc.loop.batons_lost"))
                       :key #'metrics:point-value)))))

(test calls-of-one-turn-that-end-alike-are-counted-together
  "Statuses alternate so often that the runs of a turn do not suffice."
  (with-metrics (channel client server
                         :ask (handling (note)
                                (case (mod (number-of note) 3)
                                  (0 (grpc:fail :not-found "no"))
                                  (1 (grpc:fail :aborted "no"))
                                  (t note))))
    (let ((futures (loop for i below 300
                         collect (grpc:call-async #'ask channel (note (1+ i))))))
      (dolist (future futures) (ignore-errors (grpc:await future))))
    (is-true (ended-p server "grpc.server.call.duration" 300))
    (is (equal '(("lab.Bench/Ask" "ABORTED" 100) ("lab.Bench/Ask" "NOT_FOUND" 100)
                 ("lab.Bench/Ask" "OK" 100))
               (points server "grpc.server.call.duration")))
    (dolist (point (metrics:family-points (family server "grpc.server.call.duration")))
      (is (plusp (metrics:point-sum point)))
      (is (= 100 (reduce #'+ (metrics:point-buckets point)))))))

(test calls-of-one-turn-count-by-their-own-sizes
  "Calls of one run may have as many octets as its first call, or others."
  (with-metrics (channel client server :ask (handling (note) note))
    (let* ((notes (loop for i below 300
                        collect (note 1 :text (make-string (* 2000 (mod i 3))
                                                           :initial-element #\a))))
           (octets (reduce #'+ notes :key #'grpc:serialized-size)))
      (mapc #'grpc:await (mapcar (lambda (note) (grpc:call-async #'ask channel note)) notes))
      (dolist (name '("grpc.server.call.sent_total_compressed_message_size"
                      "grpc.server.call.rcvd_total_compressed_message_size"))
        (is-true (ended-p server name 300))
        (let ((point (first (metrics:family-points (family server name)))))
          (is (= octets (metrics:point-sum point)))
          (is (equal '(0 100 100 100) (subseq (coerce (metrics:point-buckets point) 'list) 0 4))
              "~A" (metrics:point-buckets point)))))))

(test a-duration-is-that-of-the-handler
  "Three calls in a row take at least as long as their handlers wait, and together no longer than
the caller waits."
  (with-metrics (channel client server
                         :ask (handling (note)
                                (sleep 0.02)
                                note))
    (let ((start (monotonic-ns)))
      (loop for count from 1 to 3
            do (ask channel (note 4))
               ;; the server may end a call after its answer has come
               (is-true (ended-p server "grpc.server.call.duration" count)))
      (is (<= 0.06 (metrics:point-sum (first (metrics:family-points
                                              (family server "grpc.server.call.duration"))))
              (* 1/1000000000 (- (monotonic-ns) start)))))
    (let ((point (first (metrics:family-points (family server "grpc.server.call.duration")))))
      (is (= 3 (reduce #'+ (subseq (metrics:point-buckets point)
                                   (count-if (lambda (bound) (< bound 2/100))
                                             (metrics:point-bounds point)))))))))

(test calls-that-reach-no-server-have-one-attempt
  (let ((metrics (grpc:make-metrics)))
    (grpc:with-channel (channel (tests:free-address) :observer metrics)
      (handler-case (ask channel (note 1)) (grpc:unavailable () nil))
      (is (equal '(("lab.Bench/Ask" "UNAVAILABLE" 1))
                 (points metrics "grpc.client.attempt.duration")))
      (is (equal '(("lab.Bench/Ask" 1)) (points metrics "grpc.client.attempt.started"))))))

(test requests-of-http-are-no-calls
  "They count neither as calls of an unknown method nor as others."
  (let* ((metrics (grpc:make-metrics))
         (answered 0))
    (with-started (probe (start-probe (list :ask #'double)
                                      :observer metrics
                                      :http (flet ((answer (request)
                                                     (declare (ignore request))
                                                     (incf answered)
                                                     204))
                                              (list (grpc:http-handler "/" #'answer))))
                   :drain 0)
      (dolist (path '("/" "/lab.Bench/Nothing"))
        (is (search " 204 " (clgrpc.tests.server::answers
                             probe (format nil "GET ~A HTTP/1.1|host: a|connection: close||"
                                           path)))))
      (with-raw-client (peer (grpc:server-address probe))
        (clgrpc.tests.server:ask-plainly peer "/")
        (ask-raw peer "/lab.Bench/Nothing"))
      (is (= 3 answered))
      (is-true (ended-p metrics "grpc.server.call.duration" 1))
      (is (equal '(("other" "UNIMPLEMENTED" 1)) (points metrics "grpc.server.call.duration")))
      (is (equal '(("other" 1)) (points metrics "grpc.server.call.started"))))))

(defun post-note (server path)
  "Let SERVER answer a note in JSON, in the form of Connect and REST, that is sent to PATH."
  (clgrpc.tests.server::answers
   server (format nil "POST ~A HTTP/1.1|host: a|content-type: application/json|~
                       content-length: 12|connection: close||{\"number\":4}" path)))

(test calls-by-other-protocols-have-an-attribute-more
  "Calls of gRPC have only the attributes of gRFC A66; connections are counted together."
  (let* ((metrics (grpc:make-metrics))
         (ask '("grpc.method" . "lab.Bench/Ask")) (ok '("grpc.status" . "OK"))
         (connect '("clgrpc.protocol" . "connect")))
    (with-probe (channel :server server :options (list :observer metrics
                                                       :protocols '(:grpc-web :connect)))
        (:ask #'double)
      (loop repeat 3 do (ask channel (note 4)))
      (loop repeat 2 do (is (search "{\"number\":\"8\"}" (post-note server "/lab.Bench/Ask"))))
      (is-true (ended-p metrics "grpc.server.call.duration" 5))
      (flet ((attributes (name)
               (loop for point in (metrics:family-points (family metrics name))
                     collect (cons (or (metrics:point-value point) (metrics:point-count point))
                                   (metrics:point-attributes point)))))
        (dolist (name '("grpc.server.call.duration"
                        "grpc.server.call.sent_total_compressed_message_size"
                        "grpc.server.call.rcvd_total_compressed_message_size"))
          (is (equal (list (list 2 ask ok connect) (list 3 ask ok))
                     (sort (attributes name) #'< :key #'first))
              "~A" name))
        (is (equal (list (list 2 ask connect) (list 3 ask))
                   (sort (attributes "grpc.server.call.started") #'< :key #'first)))
        (is (equal '((3)) (attributes "clgrpc.server.connections_accepted")))))))

(test methods-that-are-not-kept-are-other
  (let ((metrics (grpc:make-metrics :methods '("lab.Bench/Chat") :targets (constantly nil))))
    (with-probe (channel :channel-options (list :observer metrics)) (:ask #'double)
      (ask channel (note 1))
      (is-true (ended-p metrics "grpc.client.attempt.duration" 1))
      (is (equal '((("grpc.method" . "other") ("grpc.target" . "other") ("grpc.status" . "OK")))
                 (mapcar #'metrics:point-attributes
                         (metrics:family-points
                          (family metrics "grpc.client.attempt.duration"))))))))

(test what-loops-count-alike-is-added-up
  "Attributes are equal if they have the same names and values, even in different lists."
  (flet ((attributes (value) (list (cons (copy-seq "grpc.method") (copy-seq value)))))
    (is (equal (list (cons (attributes "a") '(11 22)) (cons (attributes "b") '(5 6)))
               (metrics::merge-cells (list (cons (attributes "a") '(1 2))
                                           (cons (attributes "b") '(5 6))
                                           (cons (attributes "a") '(10 20))))))))

(test targets-are-other-once-there-are-many
  (let ((metrics (grpc:make-metrics)))
    (flet ((kept (target kept) (metrics::kept-target metrics target kept)))
      (is (string= "other" (kept "none" nil)))
      (loop for number below metrics::+most-targets+
            for target = (format nil "t~D" number)
            do (is (string= target (kept target t))))
      (is (string= "other" (kept "more" t)))
      (is (string= "t0" (kept "t0" nil)) "a known target keeps its name"))))

(test reading-holds-up-no-loop-that-counts
  "Reading takes long if there are many methods, and takes no lock."
  (let ((metrics (grpc:make-metrics)))
    (sb-thread:with-mutex ((metrics::metrics-lock metrics))
      (is (eq :read (sb-thread:join-thread
                     (in-thread
                       (metrics:collect metrics)
                       :read)
                     :timeout +patience+ :default nil))))))

(test functions-of-names-may-read-and-count
  "They are called without the metrics' lock: a thread that counts may hold a lock of theirs."
  (with-log ()
    (let* ((metrics nil)
           (keep (lambda (name)
                   (metrics:add (metrics:ensure-instruments
                                 metrics 'names
                                 (lambda (metrics)
                                   (metrics:make-counter metrics "test.names"
                                                         :attributes '("name"))))
                                1 name)
                   (metrics:collect metrics))))
      (setf metrics (grpc:make-metrics :methods keep :targets keep))
      (with-probe (channel :channel-options (list :observer metrics)) (:ask #'double)
        (ask channel (note 1))
        (is-true (ended-p metrics "grpc.client.attempt.duration" 1))
        (is (equal '(("lab.Bench/Ask" "OK" 1)) (points metrics "grpc.client.call.duration")))
        (is (= 2 (length (metrics:family-points (family metrics "test.names")))))))))

(test calls-within-the-image
  (let* ((metrics (grpc:make-metrics))
         (probe (start-probe (list :ask #'double) :observer metrics))
         (channel (grpc:server-channel probe :observer metrics)))
    (unwind-protect
         (progn
           (loop repeat 5 do (ask channel (note 4)))
           (dolist (name '("grpc.client.attempt.duration" "grpc.client.call.duration"
                           "grpc.server.call.duration"))
             (is (equal '(("lab.Bench/Ask" "OK" 5)) (points metrics name)) "~A" name)))
      (grpc:close-channel channel)
      (grpc:stop-server probe :drain 0))))

(test a-loop-that-stops-leaves-what-it-has-counted
  (let ((metrics (grpc:make-metrics :targets (constantly nil)))) ; the port is another each time
    (loop repeat 2
          do (with-probe (channel :channel-options (list :observer metrics)) (:ask #'double)
               (ask channel (note 1))))
    (is (equal '(("lab.Bench/Ask" "OK" 2)) (points metrics "grpc.client.call.duration")))
    ;; the next loop counts in its place
    (let ((shards (length (metrics::metrics-shards metrics))))
      (with-probe (channel :channel-options (list :observer metrics)) (:ask #'double)
        (ask channel (note 1)))
      (is (= shards (length (metrics::metrics-shards metrics)))))))

(test exemplars-go-with-their-bucket
  "A duration has an exemplar in its own bucket; a size has none, since exemplars are durations."
  (let ((metrics (grpc:make-metrics :exemplar (constantly '(("trace_id" . "abc"))))))
    (with-probe (channel :options (list :observer metrics)
                         :channel-options (list :observer metrics))
        (:ask #'double)
      (ask channel (note 1))
      (is-true (ended-p metrics "grpc.server.call.duration" 1))
      (flet ((exemplars (name)
               (let ((point (first (metrics:family-points (family metrics name)))))
                 (values (coerce (metrics:point-exemplars point) 'list)
                         (metrics:point-buckets point)))))
        (multiple-value-bind (exemplars buckets) (exemplars "grpc.client.call.duration")
          (is (= 1 (count nil exemplars :test-not #'eq)))
          (is (equal (position 1 buckets) (position nil exemplars :test-not #'eq))))
        (is (= 1 (count nil (exemplars "grpc.server.call.duration") :test-not #'eq)))
        (is (every #'null (exemplars "grpc.server.call.sent_total_compressed_message_size"))))
      (is (search "# {trace_id=\"abc\"} "
                  (octets-string (grpc:metrics-text
                                metrics :accept "application/openmetrics-text")))))))

(defun subchannel-disconnections (&rest arguments)
  "The metrics of a channel that has connected once and is closed, with ARGUMENTS of MAKE-METRICS."
  (let ((metrics (apply #'grpc:make-metrics :enable '("grpc.subchannel") arguments)))
    (with-probe (channel :channel-options (list :observer metrics)) (:ask #'double)
      (ask channel (note 1))
      (is-false (family metrics "grpc.subchannel.disconnections") "nothing has been counted")
      (is-false (family metrics "grpc.subchannel.connection_attempts_failed")))
    (eventually (family metrics "grpc.subchannel.disconnections"))
    (is (equal '((1)) (points metrics "grpc.subchannel.connection_attempts_succeeded")))
    (is (equal '((0)) (points metrics "grpc.subchannel.open_connections")))
    (points metrics "grpc.subchannel.disconnections")))

(test optional-labels-are-there-if-they-are-asked-for
  (is (equal '((1)) (subchannel-disconnections)))
  (is (equal '(("subchannel shutdown" 1))
             (subchannel-disconnections :optional-labels '("grpc.disconnect_error"))))
  (signals misuse (grpc:make-metrics :optional-labels '("grpc.nothing"))))

(test a-function-that-fails-loses-no-call
  "This holds for each function that MAKE-METRICS takes, at each end that calls it."
  (loop for (end name) in '((:server :exemplar) (:client :exemplar) (:server :methods)
                            (:client :methods) (:client :targets))
        do (check-failing-function end (lambda (function)
                                         (grpc:make-metrics name function)))))

(test an-error-in-an-exemplar-s-function-goes-to-the-log
  (with-log (:observer-error)
    (let ((metrics (grpc:make-metrics :exemplar (lambda (call) (/ 6 call)))))
      ;; ten errors a second are logged: this may be the eleventh
      (eventually (or (metrics::labels-of (metrics::metrics-exemplar metrics) 0)
                      (events-of :observer-error)))
      (is (null (metrics::labels-of (metrics::metrics-exemplar metrics) 0))))))

(test what-is-no-exemplar-loses-no-call
  "The text for Prometheus is not lost either."
  (dolist (wrong '(17 ("trace_id" . 17) (("trace_id" . 17))))
    (dolist (end '(:server :client))
      (let ((metrics nil))
        (flet ((make-metrics (function)
                 (setf metrics (grpc:make-metrics
                                :exemplar (lambda (call)
                                            (handler-case (funcall function call)
                                              (error () wrong)))))))
          (check-failing-function end #'make-metrics))
        (is (plusp (length (grpc:metrics-text metrics :accept "application/openmetrics-text"))))))))

(test names-that-are-none-are-refused
  (signals misuse (grpc:make-metrics :methods '(17)))
  (signals misuse (grpc:make-metrics :targets '("dns:///a" 17))))

(test records-are-made-once
  "One for each side, target and protocol of a shard, one for each method, one for each of so many
labels of a kind; further labels are other."
  (let* ((metrics (grpc:make-metrics)) (shard (svref (metrics::metrics-shared metrics) 0)))
    (flet ((record (&rest arguments) (apply #'metrics::ensure-target-record shard arguments)))
      (let* ((rows '((:client "a" nil) (:client "b" nil) (:server nil nil) (:server nil "http")))
             (records (loop for row in rows collect (apply #'record row)))
             (server (third records)))
        (is (= 4 (length (remove-duplicates records))))
        (is (equal records (loop for row in rows collect (apply #'record row))))
        (is (eq (fourth records) (metrics::add-protocol-record server :http)))
        (is (eq (fourth records) (getf (metrics::target-record-by-protocol server) :http)))
        (is (eq (metrics::add-method-record server nil) (metrics::add-method-record server nil)))
        (flet ((cells (kind text) (metrics::labelled server kind text)))
          (let ((first (cells :reason "0")))
            (loop for i from 1 below (1- metrics::+most-labels+)
                  do (cells :reason (princ-to-string i)))
            (is (= 2 (length (remove-duplicates (list first (cells :other "0"))))))
            (is (eq (cells :reason "more") (cells :reason "other")))
            (is (= 4 (length (remove-duplicates (list first (cells :other "0") (cells :other "more")
                                                      (cells :reason "more"))))))
            (is (eq first (cells :reason "0")))))
        (let ((series (make-array 2 :initial-element nil)))
          (is (eq (metrics::add-series server series 1) (metrics::add-series server series 1)))
          (is (null (support:lockless (metrics::metrics-lock metrics)
                                      `(metrics::ensure-target-record ,shard :client "a" nil)
                                      `(metrics::add-method-record ,server nil)
                                      `(metrics::add-series ,server ,series 0)
                                      `(metrics::labelled ,server :reason "0")
                                      `(metrics::shard-of-loop ,metrics nil)
                                      `(metrics::leave-shard ,metrics nil)
                                      `(grpc:make-counter ,metrics "a")))))))))

(test shards-are-used-again
  "A loop has the same shard until it stops; then another loop gets that, with its counts."
  (let ((metrics (grpc:make-metrics)))
    (flet ((shard-of (loop) (metrics::shard-of-loop metrics loop)))
      (let* ((loops (loop repeat 2 collect (loop:make-event-loop)))
             (shards (mapcar #'shard-of loops)))
        (is (not (eq (first shards) (second shards))))
        (is (equal shards (mapcar #'shard-of loops)))
        (metrics::leave-shard metrics (first loops))
        (is (equal (rest loops) (metrics::live-loops metrics)))
        (let ((other (loop:make-event-loop)))
          (is (eq (first shards) (shard-of other)))
          (is (= 2 (length (metrics::metrics-shards metrics))))
          (mapc #'loop:stop-event-loop (cons other loops)))))))
