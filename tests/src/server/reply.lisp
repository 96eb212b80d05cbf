;;;; The output of a server, as our client and a raw peer see it: metadata in both directions,
;;;; trailers, trailers-only, statuses.

(in-package #:clgrpc.tests.server)

(test metadata-of-a-call-without-any
  (with-probe (channel) (:ask #'double :watch #'count-up)
    (is (null (grpc:call-metadata (watch channel (note 0)))))
    (let ((call (nth-value 1 (ask channel (note 1)))))
      (is (null (grpc:call-metadata call)))
      (is (null (grpc:call-trailers call))))))

(test blanks-around-values
  "HTTP/2 allows no blanks around a value, so they are not sent."
  (with-probe (channel)
      (:ask (lambda (note call)
              (setf (grpc:call-trailers call) '(("x-reply" . "  two words ")))
              (note (number-of note) :text (cdr (assoc "x-ask" (grpc:call-metadata call)
                                                       :test #'string=)))))
    (multiple-value-bind (reply call) (ask channel (note 1) :metadata '(("x-ask" . " a b  ")))
      (is (string= "a b" (lab:note-text reply)))
      (is (equal '(("x-reply" . "two words")) (grpc:call-trailers call))))))

(test large-metadata
  "Metadata that take several frames, and metadata beyond the limit of the peer's header list."
  (with-probe (channel :options '(:max-header-list-octets 40000)
                       :channel-options '(:max-header-list-octets 40000))
      (:ask (fn (_note call)
              (let ((value (cdr (assoc "x-large" (grpc:call-metadata call) :test #'string=))))
                (setf (grpc:call-trailers call) `(("x-large" . ,value)))
                (note (length value)))))
    (let ((large (make-string 30000 :initial-element #\v)))
      (multiple-value-bind (reply call) (ask channel (note 1) :metadata `(("x-large" . ,large)))
        (is (= 30000 (number-of reply)))
        (is (equal `(("x-large" . ,large)) (grpc:call-trailers call))))
      (let ((error (caught (ask channel (note 1)
                                :metadata `(("x-large" . ,large) ("x-larger" . ,large))))))
        (is (typep error 'grpc:resource-exhausted))
        (is (eq :local (grpc:rpc-error-ended-by error)))
        (is (not (grpc:rpc-error-sent-p error))))
      (is (= 0 (number-of (ask channel (note 1) :metadata '(("x-large" . "")))))))))

(test wrong-metadata-is-misuse
  "At both ends, MISUSE is signalled once, before anything is sent."
  (let ((conditions '()))
    (with-probe (channel)
        (:ask (lambda (note call)
                (flet ((try (function)
                         (push (handler-case (progn (funcall function) :none)
                                 (error (error) (type-of error)))
                               conditions)))
                  (try (lambda () (setf (grpc:call-trailers call) '(("Bad" . "x")))))
                  (try (lambda () (grpc:send-metadata call '(("x-bin" . "text")))))
                  (try (lambda () (grpc:send-metadata call '(("x-a" . "1")))))
                  (try (lambda () (grpc:send-metadata call '(("x-b" . "2")))))
                  (try (lambda () (grpc:send call note)))
                  (try (lambda () (grpc:close-send call)))
                  (double note call)))
         :watch (lambda (note call)
                  (grpc:send call note)
                  (push (handler-case (progn (grpc:send-metadata call '()) :none)
                          (error (error) (type-of error)))
                        conditions)
                  nil))
      (signals grpc:misuse (ask channel (note 1) :metadata '(("te" . "x"))))
      (signals grpc:misuse (ask channel (note 1) :metadata '("x")))
      (let ((call (nth-value 1 (ask channel (note 1)))))
        (is (equal '(("x-a" . "1")) (grpc:call-metadata call)))
        (is (equal '(grpc:misuse grpc:misuse :none grpc:misuse grpc:misuse grpc:misuse)
                   (reverse conditions)))
        (signals grpc:misuse (grpc:send-metadata call '()))
        (signals grpc:misuse (grpc:reply call (note 1)))
        (signals grpc:misuse (grpc:finish call))
        (signals grpc:misuse (grpc:send call (note 1))))
      (is (equal '(1) (numbers (watch channel (note 1)))))
      (is (eq 'grpc:misuse (first conditions))))))

;;; Frame by frame

(test good-answer-on-the-wire
  "Headers, one message, trailers; metadata in headers and trailers."
  (with-probe (channel :server server)
      (:ask (lambda (note call)
              (grpc:send-metadata call '(("x-head" . "1")))
              (setf (grpc:call-trailers call) `(("x-tail-bin" . ,(octets-of 250 251 252 253))))
              (double note call)))
    (with-raw-client (peer (grpc:server-address server))
      (loop repeat 3
            for exchange = (ask-raw peer "/lab.Bench/Ask" :data (note-octets 21))
            do (is (equal '((":status" . "200") ("content-type" . "application/grpc")
                            ("x-head" . "1"))
                          (exchange-headers exchange)))
               (is (equalp (note-octets 42) (exchange-data-octets exchange)))
               (is (equal '(("grpc-status" . "0") ("x-tail-bin" . "+vv8/Q"))
                          (exchange-trailers exchange)))
               (is (null (exchange-reset exchange)))))))

(test trailers-only
  "A call that fails before it sent anything has one header block; its metadata are trailers."
  (with-probe (channel :server server)
      (:ask (fn (_note call)
              (setf (grpc:call-trailers call) '(("x-tail" . "1")))
              (error (grpc:make-rpc-error :aborted :message "nö" :details (octets-of 1 2 3)))))
    (with-raw-client (peer (grpc:server-address server))
      (let ((exchange (ask-raw peer "/lab.Bench/Ask" :data (note-octets 21))))
        (is (equal '((":status" . "200") ("content-type" . "application/grpc")
                     ("grpc-status" . "10") ("grpc-message" . "n%C3%B6")
                     ("grpc-status-details-bin" . "AQID") ("x-tail" . "1"))
                   (exchange-headers exchange)))
        (is (null (exchange-trailers exchange)))
        (is (zerop (length (exchange-data-octets exchange))))))
    (let* ((error (caught (ask channel (note 1))))
           (call (grpc:rpc-error-call error)))
      (is (typep error 'grpc:aborted))
      (is (string= "nö" (grpc:rpc-error-message error)))
      (is (equalp (octets-of 1 2 3) (grpc:rpc-error-details-octets error)))
      (is (equal '(("x-tail" . "1")) (grpc:rpc-error-trailers error)))
      (is (equal '(("x-tail" . "1")) (grpc:call-trailers call)))
      (is (null (grpc:call-metadata call))))))

(test early-end-resets-the-request
  "An answer before the request's end resets the rest without an error."
  (with-probe (channel :server server)
      (:chat (lambda (stream call) (grpc:send call (grpc:receive stream)) nil))
    (with-raw-client (peer (grpc:server-address server))
      (let ((exchange (ask-raw peer "/lab.Bench/Chat" :data (note-octets 1) :end nil)))
        (is (eq :ok (status-of exchange)))
        (await-peer peer (lambda () (exchange-reset exchange)))
        (is (eql http2:+no-error+ (exchange-reset exchange)))))))

(test finish-from-anywhere
  "The reactive end of a call, with all arguments; a second end has no effect, and a second reply is
misuse."
  (with-probe (channel)
      (:watch (lambda (note call)
                (setf (grpc:call-trailers call) '(("x-a" . "1")))
                (sb-thread:join-thread
                 (in-thread
                   (grpc:send call note)
                   (grpc:finish call :status :out-of-range :message "over" :details (octets-of 9)
                                     :trailers '(("x-b" . "2")))
                   (grpc:finish call)))
                call)
       :ask (lambda (note call)
              (grpc:reply call note)
              (handler-case (grpc:reply call (note 5))
                (grpc:misuse () call))))
    (let* ((call (watch channel (note 3)))
           (first (grpc:receive call))
           (error (caught (grpc:receive call))))
      (is (= 3 (number-of first)))
      (is (typep error 'grpc:out-of-range))
      (is (string= "over" (grpc:rpc-error-message error)))
      (is (equalp (octets-of 9) (grpc:rpc-error-details-octets error)))
      (is (equal '(("x-a" . "1") ("x-b" . "2")) (grpc:call-trailers call))))
    (is (= 7 (number-of (ask channel (note 7)))))))

(test finish-is-checked
  (let ((conditions '()))
    (with-probe (channel)
        (:ask (lambda (note call)
                (flet ((try (&rest arguments)
                         (push (handler-case (progn (apply #'grpc:finish call arguments) :none)
                                 (error (error) (type-of error)))
                               conditions)))
                  (try :status :nonsense)
                  (try :status :aborted :message 5)
                  (try :status :aborted :details "text")
                  (try :status :aborted :trailers '(("Bad" . "x"))))
                (double note call)))
      (is (= 2 (number-of (ask channel (note 1)))))
      (is (equal '(grpc:misuse grpc:misuse grpc:misuse grpc:misuse) conditions)))))

(test a-reply-that-repeats
  "Once the fields are in the peer's table, reply headers are two octets and trailers one: 9 + 2 for
HEADERS, 9 and the message for DATA, 9 + 1 for the trailers."
  (with-probe (channel :server server) (:ask (handling (note) note))
    (declare (ignorable channel))
    (with-raw-client (peer (grpc:server-address server))
      (let* ((message (note-octets 7))
             (sizes (loop repeat 3
                          collect (let ((before (peer-received peer)))
                                    (ask-raw peer "/lab.Bench/Ask" :data message)
                                    (- (peer-received peer) before)))))
        (is (= (+ 9 2 9 (length message) 9 1) (car (last sizes))) "~S" sizes)
        (is (< (car (last sizes)) (first sizes)))))))

;;; What a client takes

(defun header-list-octets (fields)
  (loop for (name . value) in fields
        sum (+ 32 (length name) (length value))))

(defun fail-at-length (note call)
  "Fail with a text, details and trailers of the lengths that NOTE has."
  (setf (grpc:call-trailers call)
        (and (plusp (length (lab:note-text note)))
             `(("x-tail" . ,(make-string (parse-integer (lab:note-text note))
                                         :initial-element #\t)))))
  (if (minusp (number-of note))
      (note 1)
      (error (grpc:make-rpc-error
              :not-found
              :message (make-string (number-of note) :initial-element (code-char 233))
              :details (and (plusp (length (lab:note-body note))) (lab:note-body note))))))

(test ends-that-fit-into-what-the-client-takes
  "Every status arrives: within SETTINGS_MAX_HEADER_LIST_SIZE of the client, and our own limit if
the client has none."
  (with-log ()
    (dolist (limit '(1024 4096 16384 1000000))
      (with-probe (channel :server server) (:ask #'fail-at-length)
        (declare (ignorable channel))
        (with-raw-client (peer (grpc:server-address server) :max-header-list-octets limit)
          (loop for (number tail body) in '((10 nil 0) (300 nil 0) (100000 nil 0) (100000 "500" 0)
                                            (100000 nil 500) (10 "100000" 0) (10 nil 100000)
                                            (100000 "100000" 100000) (50 "300" 300))
                for exchange = (ask-raw peer "/lab.Bench/Ask"
                                        :data (note-octets number :text (or tail "") :body body))
                for fields = (exchange-headers exchange)
                for message = (client::decode-status-message
                               (ascii-octets (or (field-of "grpc-message" fields) "")))
                do (is (eq :not-found (status-of exchange)))
                   (is (<= (header-list-octets fields) (min limit 16384)))
                   (is (plusp (length message)))
                   (is (not (find (code-char #xFFFD) message)))
                   (when (<= number 50)
                     (is (= number (length message))))
                   (when (and tail (string= tail "300") (< 1024 limit))
                     (is-true (field-of "x-tail" fields))
                     (is-true (field-of "grpc-status-details-bin" fields)))
                   (when (equal tail "100000") (is (null (field-of "x-tail" fields))))
                   (when (= body 100000)
                     (is (null (field-of "grpc-status-details-bin" fields)))))
          ;; the answer came, but not what belongs to it
          (let ((exchange (ask-raw peer "/lab.Bench/Ask" :data (note-octets -1 :text "100000"))))
            (is (eq :resource-exhausted (status-of exchange))))
          (is (eq :ok (status-of (ask-raw peer "/lab.Bench/Ask"
                                          :data (note-octets -1 :text "100"))))))))))

(test a-function-for-the-log-may-send
  "The omission of details or trailers is logged after the end has been written: a function for the
log may send the report on another call of the connection."
  (let* ((kept nil)
         (listener (fn (_level event &rest _plist)
                     (when (eq :status-cut event) (grpc:try-send kept (note 5))))))
    (with-server-loop (server-loop)
        (:ask #'fail-at-length
         :watch (lambda (note call) (declare (ignore note)) (setf kept call)))
      (comes server-loop)
      (asks 1 "Watch" 21)
      (memory:said)
      (add-log-listener listener)
      (unwind-protect (asks 3 "Ask" 10 :text "100000")
        (remove-log-listener listener))
      (let ((frames (memory:said)))
        (is (equal '((:headers 3) (:headers 1) (:data 1))
                   (mapcar (lambda (frame) (subseq frame 0 2)) frames)))
        (is (equal (map 'string #'code-char (note-octets 5)) (third (third frames)))))
      (asks 5 "Ask" -1)
      (answered '(5 :ok)))))

(test metadata-that-the-client-does-not-take
  "SEND-METADATA signals an error in the handler."
  (with-log ()
    (with-probe (channel :channel-options '(:max-header-list-octets 4096))
        (:ask (lambda (note call)
                (grpc:send-metadata call `(("x" . ,(make-string (number-of note)
                                                                :initial-element #\x))))
                (note 1)))
      (is (= 1 (number-of (ask channel (note 3000)))))
      (is (typep (caught (ask channel (note 5000))) 'grpc:resource-exhausted))
      (is (= 1 (number-of (ask channel (note 3000))))))))
