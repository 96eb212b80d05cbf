;;;; Bursts: 100 KB at once of what is short for a client and long for a server, 14 octets a
;;;; request. No burst may hold up the others, nor have the server make, or send back, much more
;;;; than it is.

(in-package #:clgrpc.tests.abuse)
(in-suite :clgrpc.abuse)

(defparameter *burst-octets* 100000)
(defparameter *most-stall-seconds* 0.25
  "The longest call of a bystander during a burst. The promise is 50 ms; the attacker, the bystander
and their garbage are in this process as well.")
(defparameter *most-consed-octets* 100000000
  "What this process may allocate during a burst; handlers, attacker and bystander do, too.")
(defparameter *most-answered-octets* 12000000
  "What a server may say to a burst: 4 KB to each of 2,300 calls that fail, little to others.")

(defun burst (attacker fields &key (flags '(:end-stream)) more)
  "A burst of requests of FIELDS, which are in the tables from the second on, each followed by the
frames that MORE, a function of the stream's identifier, returns. MORE says the same for each."
  (let ((speech (attacker-speech attacker)))
    (flet ((one ()
             (let ((id (new-id attacker)))
               (frames-octets speech (cons `(:headers ,id ,fields ,@flags)
                                           (and more (funcall more id)))))))
      (let* ((first (one))
             (second (one))
             (count (floor *burst-octets* (length second)))
             (all (repeated second count)))
        (loop for i from 1 below count
              for id = (new-id attacker)
              do (loop with at = (* i (length second))
                       while (< at (* (1+ i) (length second)))
                       do (setf (u32be all (+ 5 at)) id)
                          (incf at (+ 9 (u24be all at)))))
        (concatenate 'octets first all)))))

(defun with-table-field (name octet &optional (length 2800))
  "A field of NAME that just goes into the table."
  (list name (make-string length :initial-element (code-char octet))))

(defun asking (&rest more)
  (request-fields "/lab.Bench/Ask" :fields more))

(defun sending (&rest octets)
  "Frames of requests whose content is OCTETS."
  (lambda (id) `((:data ,id ,(apply #'concatenate 'octets octets) :end-stream))))

(defparameter *refusals*
  `(("unknown method" ,(request-fields "/lab.Bench/Nothing"))
    ("unknown service" ,(request-fields "/no.Such/Method"))
    ("unknown encoding" ,(asking (with-table-field "grpc-encoding" 255)))
    ("bad content-type" ,(request-fields "/lab.Bench/Ask" :content-type "text/plain"))
    ("long content-type" ,(request-fields "/lab.Bench/Ask"
                                          :content-type (make-string 3000 :initial-element #\x)))
    ("bad method" ,(request-fields "/lab.Bench/Ask" :method "GET"))
    ("accepted encodings" ,(asking (with-table-field "grpc-accept-encoding" 44)))
    ("bad timeout" ,(asking '("grpc-timeout" "xyz")))
    ("no time" ,(asking '("grpc-timeout" "0n")))
    ("no time for a stream" ,(request-fields "/lab.Bench/Chat" :fields '(("grpc-timeout" "1n"))))
    ("bad metadata" ,(asking '("x-bin" "!!!")))
    ("long bad metadata" ,(asking (list "x-bin" (make-string 2800 :initial-element #\!))))
    ("long metadata" ,(asking (with-table-field "x" 65)))
    ("no message" ,(asking))
    ("cut message" ,(asking) :flags () :more ,(sending (octets-of 0 0 0 0 5 1)))
    ("bad flag" ,(asking) :flags () :more ,(sending (octets-of 7 0 0 0 0)))
    ("too long" ,(asking) :flags () :more ,(sending (octets-of 0 127 0 0 0)))
    ("no protobuf" ,(asking) :flags () :more ,(sending (octets-of 0 0 0 0 1 255)))
    ("two messages" ,(asking) :flags () :more ,(sending (octets-of 0 0 0 0 0 0 0 0 0 0)))
    ("calls" ,(asking) :flags () :more ,(sending (octets-of 0 0 0 0 0)))
    ("failing calls" ,(asking (with-table-field "x" 255)) :flags ()
                     :more ,(sending (note-octets 666)))
    ("never ended" ,(asking) :flags ())
    ("resets" ,(asking) :flags () :more ,(lambda (id) `((:rst-stream ,id :cancel))))
    ("malformed" ,(asking '("te" "x")))
    ("a window of nothing" ,(asking) :flags () :more ,(lambda (id) `((:window-update ,id 0)))))
  "Name, fields, and what BURST takes beside.")

(defparameter *frames*
  '((:ping 7) (:settings) (:settings (:initial-window-size 0)) (:ping-ack 7) (:priority 3 1)
    (:window-update 0 1) (:goaway 0 :no-error) (:data 1 "") (:data 1 "" (:pad 255))
    (:continuation 1 "" :open))
  "Those without end are sent after a request that has not ended.")

(defun fail-with-metadata (note call)
  "Fail with as much as the request has brought, if that is to be."
  (if (= 666 (number-of note))
      (let ((text (cdr (assoc "x" (grpc:call-metadata call) :test #'string=))))
        (grpc:fail :not-found text :details (load-time-value (make-octets 100000))))
      (answer note call)))

(defun call-in-burst (octets attacker channel)
  "Throw OCTETS and hear what comes while a bystander makes calls. Return the longest of those, in
seconds without those in which threads stood still, how many octets were heard, and how many were
allocated."
  (let* ((watch (make-watch))
         (waker (sb-thread:make-thread #'wake-often :name "waker" :arguments (list watch)))
         (over nil) (longest 0) (heard 0)
         (bystander nil)
         (before (sb-ext:get-bytes-consed)))
    (flet ((call-on ()
             (loop until over
                   do (let ((stolen (stolen-ns watch)) (start (monotonic-ns)))
                        (ask channel (note 1) :timeout +patience+)
                        (setf longest (max longest (- (monotonic-ns) start
                                                      (- (stolen-ns watch) stolen))))))))
      (setf bystander (sb-thread:make-thread #'call-on :name "bystander"))
      (unwind-protect
           (loop with at = 0
                 do (when (and at (< at (length octets)))
                      (setf at (throw-some attacker octets at 0)))
                    (incf heard (buffer-fill (attacker-input attacker)))
                    (clear-buffer (attacker-input attacker))
                 while (and (or (read-input attacker 0.2) (and at (< at (length octets))))
                            (not (attacker-closed attacker))))
        (setf over t)
        (sb-thread:join-thread bystander :timeout (* 3 +patience+) :default nil)
        (signal-it (watch-asleep watch))
        (sb-thread:join-thread waker)))
    (values (ns-seconds longest) heard (- (sb-ext:get-bytes-consed) before))))

(defun check-burst (name octets attacker channel)
  (multiple-value-bind (stall heard consed) (call-in-burst octets attacker channel)
    (format t "~&; burst of ~A: ~,1F ms, ~,2F MB heard, ~,1F MB consed~%" name (* 1000 stall)
            (/ heard 1e6) (/ consed 1e6))
    (is (< stall *most-stall-seconds*) "~A: a bystander waited ~,3F s." name stall)
    (is (< heard *most-answered-octets*) "~A: ~D octets were answered." name heard)
    (is (< consed *most-consed-octets*) "~A: ~D octets were consed." name consed)))

(defmacro with-burst ((attacker channel) &body body)
  "Evaluate BODY with ATTACKER and CHANNEL connected to a server that has rested."
  (let ((address (gensym "ADDRESS")))
    `(with-victim (,address :watched nil
                            :handlers (list :ask #'fail-with-metadata :watch #'count-down
                                            :collect #'add-up :chat #'echo))
       (grpc:with-channel (,channel ,address)
         (ask ,channel (note 1))
         (with-attacker (,attacker ,address)
           (sb-ext:gc)
           ,@body)))))

(test bursts-of-requests
  (loop for (name fields . arguments) in *refusals*
        do (with-burst (attacker channel)
             (check-burst name (apply #'burst attacker fields arguments) attacker channel))))

(test bursts-of-frames
  (dolist (form *frames*)
    (with-burst (attacker channel)
      (let* ((flags (when (eq :continuation (first form)) '(:open)))
             (request (frames-octets (attacker-speech attacker) `((:headers 1 ,(asking) ,@flags))))
             (frame (opening-octets form)))
        (check-burst form (concatenate 'octets request
                                       (repeated frame (floor *burst-octets* (length frame))))
                     attacker channel)))))

(test bursts-of-messages
  "Messages of nothing by the thousand, and long ones that come back in a status."
  (dolist (path '("/lab.Bench/Collect" "/lab.Bench/Chat" "/lab.Bench/Ask"))
    (with-burst (attacker channel)
      (let ((octets (repeated (octets-of 0 0 0 0 0) 3276)))
        (check-burst path
                     (frames-octets (attacker-speech attacker)
                                    `((:headers 1 ,(request-fields path))
                                      ,@(loop repeat 6 collect `(:data 1 ,octets))))
                     attacker channel)))))
