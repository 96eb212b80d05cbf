;;;; The access log: the contents of a call's event, on each transport, and the calls that have one.

(in-package #:clgrpc.tests.logs)

(defun refuse (note call)
  (declare (ignore note call))
  (grpc:fail :not-found "no such note"))

(defun logged (role count)
  "The events of calls at the end ROLE, the oldest first, once there are COUNT."
  (flet ((found () (remove role (reverse (events-of :call)) :key (lambda (plist) (getf plist :role))
                                                            :test-not #'eq)))
    (wait-until (lambda () (<= count (length (found)))))
    (found)))

(defun some-of (plist &rest keys)
  (loop for key in keys collect (getf plist key)))

(defun octets (&rest numbers)
  "The number of octets of notes of NUMBERS."
  (loop for number in numbers sum (grpc:serialized-size (note number))))

(test both-ends-log-each-call-with-what-became-of-it
  (let ((log (grpc:make-access-log)))
    (with-probe (channel :server server :options (list :observer log)
                         :channel-options (list :observer log))
        (:ask #'double)
      (ask channel (note 4))
      (let ((ours (first (logged :client 1))) (theirs (first (logged :server 1))))
        (is (equal (list :client "/lab.Bench/Ask"
                         (format nil "dns:///~A" (grpc:server-address server))
                         (grpc:server-address server) "OK" 1 (octets 4) (octets 8) 1 1)
                   (some-of ours :role :method :target :peer :status :attempts :octets-sent
                            :octets-received :messages-sent :messages-received)))
        (is (< 0 (getf ours :seconds) 60))
        (is (< 0 (getf (getf ours :stages) :wait) 60))
        (is (null (getf (getf ours :stages) :total)))
        (is (equal (list :server "/lab.Bench/Ask" nil "OK" nil (octets 8) (octets 4) 1 1)
                   (some-of theirs :role :method :target :status :attempts :octets-sent
                            :octets-received :messages-sent :messages-received)))
        (is (stringp (getf theirs :peer)))
        (is (< 0 (getf theirs :seconds) 60))))))

(test calls-of-all-kinds-are-logged
  (let ((log (grpc:make-access-log)))
    (with-probe (channel :options (list :observer log) :channel-options (list :observer log))
        (:ask #'double :watch #'count-up :collect #'add-up :chat #'echo)
      (ask channel (note 1))
      (numbers (watch channel (note 3)))
      (collect channel (list (note 1) (note 2)))
      (numbers (chat channel (list (note 1) (note 2))))
      (let ((expected (list (list "/lab.Bench/Ask" (octets 1) (octets 2) 1 1)
                            (list "/lab.Bench/Watch" (octets 3) (octets 0 1 2) 1 3)
                            (list "/lab.Bench/Collect" (octets 1 2) (octets 3) 2 1)
                            (list "/lab.Bench/Chat" (octets 1 2) (octets 1 2) 2 2))))
        (is (equal expected
                   (loop for event in (logged :client 4)
                         collect (some-of event :method :octets-sent :octets-received
                                          :messages-sent :messages-received))))
        (is (equal expected
                   (loop for event in (logged :server 4)
                         collect (some-of event :method :octets-received :octets-sent
                                          :messages-received :messages-sent))))))))

(test the-event-of-a-servers-call-says-by-which-protocol-it-came
  (let ((log (grpc:make-access-log)))
    (with-probe (channel :server server :options (list :observer log :protocols '(:connect))
                         :channel-options (list :observer log))
        (:ask #'double)
      (ask channel (note 4))
      (clgrpc.tests.server::answers
       server (format nil "POST /lab.Bench/Ask HTTP/1.1|host: a|content-type: application/json|~
                           content-length: 2|connection: close||{}"))
      (is (equal '(:grpc :connect)
                 (mapcar (lambda (event) (getf event :protocol)) (logged :server 2))))
      (is (equal '(nil) (mapcar (lambda (event) (getf event :protocol)) (logged :client 1)))))))

(test calls-within-the-image-are-logged
  (let ((log (grpc:make-access-log)))
    (with-log ()
      (with-started (server (start-probe (list :ask #'double :watch #'count-up) :observer log)
                     :drain 0)
        (let ((channel (grpc:server-channel server :observer log)))
          (ask channel (note 4))
          (numbers (watch channel (note 2)))
          (let ((ours (logged :client 2)) (theirs (logged :server 2)))
            (is (equal (list (list "/lab.Bench/Ask" "inproc:" "OK" 1 (octets 4) (octets 8))
                             (list "/lab.Bench/Watch" "inproc:" "OK" 1 (octets 2)
                                   (octets 0 1)))
                       (loop for event in ours
                             collect (some-of event :method :peer :status :attempts
                                              :octets-sent :octets-received))))
            (is (equal (list (list "/lab.Bench/Ask" "OK" (octets 4))
                             (list "/lab.Bench/Watch" "OK" (octets 2)))
                       (loop for event in theirs
                             collect (some-of event :method :status :octets-received))))
            (is (plusp (getf (first ours) :seconds))))
          (grpc:close-channel channel))))))

(test a-failure-says-how-the-call-has-ended
  (let ((log (grpc:make-access-log)))
    (with-probe (channel :options (list :observer log) :channel-options (list :observer log))
        (:ask #'refuse)
      (is-true (caught (ask channel (note 4))))
      (is (equal '("NOT_FOUND" "no such note" :peer 1 0)
                 (some-of (first (logged :client 1)) :status :message :ended-by
                          :messages-sent :messages-received)))
      (is (equal '("NOT_FOUND" "no such note" :local 0 1)
                 (some-of (first (logged :server 1)) :status :message :ended-by
                          :messages-sent :messages-received)))
      ;; a method that the server does not have
      (is-true (caught (numbers (watch channel (note 4)))))
      (is (equal "UNIMPLEMENTED" (getf (second (logged :server 2)) :status)))
      ;; one that it does not know is no method, but one sees which it was
      (is-true (caught (lab.absent:ask channel (note 4))))
      (is (equal '(nil "UNIMPLEMENTED" "unknown service or method /lab.Absent/Ask")
                 (some-of (third (logged :server 3)) :method :status :message))))))

(test attempts-are-counted
  (let* ((log (grpc:make-access-log))
         (left 2)
         (config '(:method-config
                   ((:name (())
                     :retry-policy (:max-attempts 4 :initial-backoff 0.01 :max-backoff 0.02
                                    :backoff-multiplier 2
                                    :retryable-status-codes (:unavailable)))))))
    (with-probe (channel :server server
                         :channel-options (list :observer log :service-config config))
        (:ask (lambda (note call)
                (when (plusp left)
                  (decf left)
                  (grpc:fail :unavailable "not now"))
                (double note call)))
      (ask channel (note 4))
      (is (equal '("OK" 3) (some-of (first (logged :client 1)) :status :attempts)))
      (setf left 9)
      (is-true (caught (ask channel (note 4))))
      (is (equal '("UNAVAILABLE" 4) (some-of (second (logged :client 2)) :status :attempts)))
      (setf left 2)
      (let ((within (grpc:server-channel server :observer log :service-config config)))
        (ask within (note 4))
        (is (equal '("OK" 3) (some-of (third (logged :client 3)) :status :attempts)))
        (grpc:close-channel within)))))

(test a-call-without-a-server-has-no-peer
  (with-log ()
    (let ((address (let ((server (start-probe '())))
                     (prog1 (grpc:server-address server)
                       (grpc:stop-server server :drain 0)))))
      (grpc:with-channel (channel address :observer (grpc:make-access-log))
        (is-true (caught (ask channel (note 1))))
        (is (equal (list "UNAVAILABLE" nil (format nil "dns:///~A" address))
                   (some-of (first (logged :client 1)) :status :peer :target)))))))

;;; Which calls are logged

(test failures-are-logged-whatever-the-ratio-is
  (dolist (case '((0 t 1) (0 nil 0) (1 nil 2)))
    (destructuring-bind (ratio failures expected) case
      (let ((log (grpc:make-access-log :ratio ratio :failures failures)) (fail nil))
        (with-probe (channel :channel-options (list :observer log))
            (:ask (lambda (note call) (if fail (refuse note call) (double note call))))
          (ask channel (note 4))
          (setf fail t)
          (is-true (caught (ask channel (note 4))))
          (is (= expected (length (logged :client expected)))))))))

(test failures-of-a-peer-are-logged-ten-times-a-second
  "All others are counted, and reported together."
  (with-log ()
    (let ((log (grpc:make-access-log :ratio 0)) (calls 0))
      (with-probe (channel :options (list :observer log)) (:ask #'refuse)
        (flet ((told ()
                 (loop for plist in (events-of :calls-not-logged)
                       for what = (getf plist :what)
                       do (assert (search " of 127.0.0.1" what))
                       sum (parse-integer what :junk-allowed t))))
          (is-true (wait-until (lambda ()
                                 (loop repeat 20 do (caught (ask channel (note 4))))
                                 (incf calls 20)
                                 (plusp (told)))))
          (eventually (= calls (+ (told) (length (logged :server 0)))))
          (is (>= (length (logged :server 0)) 10)))))))

(test peers-that-fail-are-counted-without-their-ports-and-not-all
  (let ((event-loop (loop:make-event-loop :name "failures")) (told '()))
    (unwind-protect
         (let ((failures (logs::make-failures :loop event-loop
                                              :tell (lambda (&rest event) (push event told)))))
           (is (equal '("127.0.0.1" "[::1]" "unix:/a:b" "no peer")
                      (mapcar #'logs::peer-host '("127.0.0.1:5" "[::1]:5" "unix:/a:b" nil))))
           (dotimes (i 1000) (setf (gethash (format nil "10.0.0.~D" i) ; as many as there may be
                                            (logs::failures-counts failures))
                                   (if (< i logs::+peers-per-second+)
                                       1
                                       (return))))
           (setf (logs::failures-end-ns failures) (ash 1 60))
           (with-replaced (('grpc:call-peer (constantly "192.0.2.1:5")))
             (dotimes (i 2) (is-true (logs::log-failure-p failures nil))))
           (is (eql 2 (gethash "others" (logs::failures-counts failures))))
           (setf (gethash "10.0.0.0" (logs::failures-counts failures)) 15)
           (logs::tell-failures failures)
           (is (equal '((:warning :calls-not-logged :what "5 of 10.0.0.0")) told))
           (is (zerop (hash-table-count (logs::failures-counts failures)))))
      (loop:stop-event-loop event-loop))))

(test a-share-of-the-calls-is-logged
  "Of 100,000 draws 1,000 win at 1 %; five standard deviations are 157."
  (flet ((wins (threshold event-loop)
           (loop with draw = (logs::make-draw threshold event-loop)
                 repeat 100000 count (funcall draw))))
    (let ((event-loop (loop:make-event-loop :name "draw" :random (sb-ext:seed-random-state 7))))
      (unwind-protect
           (let ((threshold (round logs::+chances+ 100)))
             (is (< 843 (wins threshold event-loop) 1157))
             (is (< 843 (wins threshold nil) 1157))
             (is (zerop (wins 0 nil)))
             (is (= 100000 (wins logs::+chances+ event-loop))))
        (loop:stop-event-loop event-loop)))
    (is (< 843
           (reduce #'+ (let ((draw (logs::make-draw (round logs::+chances+ 100) nil)))
                         (with-threads (i 4)
                           (loop repeat 25000 count (funcall draw)))))
           1157))))

(test a-call-that-is-not-logged-allocates-nothing
  (let* ((draw (logs::make-draw (round logs::+chances+ 1000000) nil))
         (before (sb-ext:get-bytes-consed)))
    (loop repeat 100000 do (funcall draw))
    ;; 16 octets each would be 1,600,000
    (is (< (- (sb-ext:get-bytes-consed) before) 100000))))

;;; Where the events go

(test a-log-of-its-own-gets-the-events
  "The log of the process gets none; as a line of JSON each event is an object."
  (let* ((stream (make-string-output-stream))
         (log (grpc:make-access-log
               :function (grpc:log-writer :stream stream :format :json :level :info)
               :exemplar (lambda (call)
                           (list (cons "trace_id" (grpc:call-value call 'trace)))))))
    (with-probe (channel :channel-options (list :observer log)) (:ask #'double)
      (ask channel (note 4) :values '(trace "4bf92f3577b34da6a3ce929d0e0e4736"))
      (is-true (grpc:flush-log))
      (is (null (events-of :call))))
    (let ((object (parse-json (get-output-stream-string stream))))
      (flet ((member-of (name) (cdr (assoc name object :test #'string=))))
        (is (equal '("info" "call" "client" "/lab.Bench/Ask" "OK" 1
                     "4bf92f3577b34da6a3ce929d0e0e4736")
                   (mapcar #'member-of '("level" "event" "role" "method" "status" "attempts"
                                         "trace_id"))))
        (is (= (octets 4) (member-of "octets_sent")))
        (is (< 0 (cdr (assoc "wait" (member-of "stages") :test #'string=)) 60))))))

(test an-error-in-what-an-access-log-calls-harms-no-call
  (let ((log (grpc:make-access-log :exemplar (lambda (call) (error "of ~A" call)))))
    (with-probe (channel :channel-options (list :observer log) :events (:observer-error))
        (:ask #'double)
      (is (= 8 (number-of (ask channel (note 4)))))
      (eventually (events-of :observer-error)))))

(test what-an-access-log-cannot-be-made-of-is-refused
  (signals misuse (grpc:make-access-log :ratio 1.5))
  (signals misuse (grpc:make-access-log :ratio "all"))
  (signals misuse (grpc:make-access-log :function 5))
  (is (search "1.00 % and failures" (princ-to-string (grpc:make-access-log :ratio 0.01)))))

(test the-events-of-a-traced-call-have-its-ids
  (dolist (sampler '(:always-on :always-off))
    (let ((log (grpc:make-access-log)) (tracing (grpc:make-tracing :sampler sampler)))
      (with-probe (channel :options (list :observer (list log tracing))
                           :channel-options (list :observer (list tracing log)))
          (:ask #'refuse)
        (grpc:with-span ("outside" :tracing tracing)
          (signals grpc:not-found (ask channel (note 4)))
          (let ((ours (first (logged :client 1))) (theirs (first (logged :server 1))))
            (is (string= (grpc:trace-id (grpc:current-trace)) (getf ours :trace-id)))
            (is (string= (getf ours :trace-id) (getf theirs :trace-id)))
            (is (= 16 (length (getf ours :span-id)) (length (getf theirs :span-id))))
            (is (= 3 (length (remove-duplicates
                              (list (grpc:span-id (grpc:current-trace)) (getf ours :span-id)
                                    (getf theirs :span-id))
                              :test #'string=)))
                "each span id is that of its own call")))))))

(test the-stages-of-an-event-are-an-object-always
  "They are one even for a call that ended while it was received, whose stages are only words: a
search engine refuses a field that is an object once and a list another time."
  (loop for stages in '((:stage :receive :total 1.5d0) (:queue 0.5d0 :stage :answer) (:stage :send))
        do (is (clgrpc.base::plist-p (clgrpc.logs::stages-plist stages)) "~S" stages)))
