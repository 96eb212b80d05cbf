;;;; A second dialect beside gRPC, as small as one can be: messages are lines that end with a
;;;; newline, each a number, and so are answers; the last line of an answer begins with "!" and has
;;;; the status. It has its own head, time-out, bodies and end, so that each place where dialects
;;;; differ is passed.

(in-package #:clgrpc.tests.server)
(in-suite :clgrpc.server)

(defparameter *lines-type* "application/x-lines")

(defun read-lines-head (request list)
  "X-TIMEOUT-SECONDS is the time-out, X-REFUSE the text of a refusal."
  (hpack:do-fields (field list)
    (let ((name (hpack:field-name-string field)) (value (hpack:field-value-string field)))
      (cond ((string= "x-timeout-seconds" name)
             (setf (server::request-timeout request) (seconds-ns (parse-integer value))))
            ((string= "x-refuse" name)
             (setf (server::request-rejection request) (list :permission-denied value)))))))

(defun receive-lines (call octets start end)
  "Deliver each whole line, and keep what is left until there is more."
  (let ((octets (concatenate 'octets (wire:call-dialect-state call)
                             (subseq-octets octets start end)))
        (at 0))
    (loop for newline = (position 10 octets :start at)
          while (and newline (null (grpc:call-status call)))
          do (rpc:operate deliver call octets at newline)
             (setf at (1+ newline)))
    (setf (wire:call-dialect-state call) (subseq octets at))))

(defun end-lines (call)
  "A line that has not ended is one."
  (let ((rest (wire:call-dialect-state call)))
    (when (and (plusp (length rest)) (null (grpc:call-status call)))
      (rpc:operate deliver call rest 0 (length rest)))))

(defun parse-line (call octets start end)
  (declare (ignore call))
  (note (parse-integer (octets-ascii octets start end))))

(defun encode-line (call note compress)
  (declare (ignore call compress))
  (ascii-octets (format nil "~D~%" (number-of note))))

(defun write-lines-head (call)
  (send-fields (wire:wire-call-stream call)
               `((":status" . "200") ("content-type" . ,*lines-type*)) nil))

(defun write-lines-end (call)
  (wire:ensure-headers call)
  (let ((octets (ascii-octets (format nil "!~(~A~)~%" (grpc:call-status call)))))
    (http2:send-data (wire:wire-call-stream call) octets 0 (length octets) t)))

(defun lines-type-p (content-type)
  (string= *lines-type* content-type))

(defun call-with-lines (function)
  (unwind-protect
       (progn (wire:define-dialect lines
                :accepts #'lines-type-p :read-head #'read-lines-head :receive #'receive-lines
                :end #'end-lines :parse #'parse-line :write-head #'write-lines-head
                :encode #'encode-line :write-end #'write-lines-end)
              (funcall function))
    (wire:remove-dialect 'lines)))

(defmacro with-lines (() &body body)
  "Evaluate BODY while servers know the dialect."
  `(call-with-lines (lambda () ,@body)))

(defun ask-lines (peer path text &rest arguments)
  "What the server of PEER answers on PATH to the lines of TEXT."
  (let ((exchange (apply #'ask-raw peer path :content-type *lines-type*
                                             :data (ascii-octets (format nil text)) arguments)))
    (is (string= *lines-type* (or (field-of "content-type" (exchange-headers exchange)) "")))
    (is (null (exchange-trailers exchange)))
    (octets-string (exchange-data-octets exchange))))

(defun lines (&rest lines)
  (format nil "~{~A~%~}" lines))

(test another-dialect
  "Every kind of method answers in the dialect in which it was asked, on the loop and elsewhere; gRPC
goes on beside it."
  (dolist (execution '(:inline :blocking))
    (with-lines ()
      (with-probe (channel :server server :options (list :execution execution))
          (:ask #'double :chat #'echo
           :watch (lambda (note call)
                    (dotimes (i (number-of note)) (grpc:send call (note i))))
           :collect (lambda (stream call)
                      (declare (ignore call))
                      (note (reduce #'+ (numbers stream)))))
        (with-raw-client (peer (grpc:server-address server))
          (is (string= (lines 42 "!ok") (ask-lines peer "/lab.Bench/Ask" "21~%")))
          (is (string= (lines 42 "!ok") (ask-lines peer "/lab.Bench/Ask" "21")))
          (is (string= (lines 0 1 2 "!ok") (ask-lines peer "/lab.Bench/Watch" "3~%")))
          (is (string= (lines 6 "!ok") (ask-lines peer "/lab.Bench/Collect" "1~%2~%3~%")))
          (is (string= (lines 1 2 3 "!ok") (ask-lines peer "/lab.Bench/Chat" "1~%2~%3")))
          (is (equalp (note-octets 42) (exchange-data-octets
                                        (ask-raw peer "/lab.Bench/Ask" :data (note-octets 21)))))
          (is (= 6 (getf (grpc:server-statistics server) :calls))))
        (is (= 42 (number-of (ask channel (note 21)))))))))

(test lines-in-pieces
  "A dialect gets a body as it comes, and keeps what it needs of it."
  (with-lines ()
    (with-probe (channel :server server) (:chat #'echo)
      (declare (ignorable channel))
      (with-raw-client (peer (grpc:server-address server))
        (let ((exchange (send-request peer "/lab.Bench/Chat" :content-type *lines-type* :end nil)))
          (loop with octets = (ascii-octets (lines 12 345 6))
                for i below (length octets)
                do (http2:send-data (exchange-stream exchange) (subseq-octets octets i (1+ i)) 0 1
                                    (= i (1- (length octets))))
                   (flush-peer peer))
          (await-answer peer exchange)
          (is (string= (lines 12 345 6 "!ok")
                       (octets-string (exchange-data-octets exchange)))))))))

(test ends-in-another-dialect
  "What goes wrong is said as the dialect has it: in the head, in the body, in the handler."
  (with-lines ()
    (with-probe (channel :server server :events (:handler-error))
        (:ask (lambda (note call)
                (case (number-of note)
                  (1 (grpc:fail :not-found "no"))
                  (2 (error "As asked."))
                  (3 (sleep 1.2) note)
                  (t (double note call)))))
      (declare (ignorable channel))
      (with-raw-client (peer (grpc:server-address server))
        (flet ((ask-it (text &rest fields)
                 (ask-lines peer "/lab.Bench/Ask" text :fields fields)))
          (is (string= (lines "!not-found") (ask-it "1~%")))
          (is (string= (lines "!internal") (ask-it "2~%")))
          (is (string= (lines "!deadline-exceeded") (ask-it "3~%" '("x-timeout-seconds" . "1"))))
          (is (string= (lines "!permission-denied") (ask-it "4~%" '("x-refuse" . "go away"))))
          (is (string= (lines "!unimplemented") (ask-it "5~%6~%")))
          (is (string= (lines "!unimplemented") (ask-lines peer "/lab.Bench/Nothing" "1~%")))
          (is (string= (lines 8 "!ok") (ask-it "4~%"))))))))

(test dialects-come-and-go
  "A content type that was refused is known once its dialect is, on the same connection, and refused
again afterwards; the newest definition of a name counts."
  (with-probe (channel :server server) (:ask #'double)
    (declare (ignorable channel))
    (with-raw-client (peer (grpc:server-address server))
      (flet ((http-status ()
               (field-of ":status" (exchange-headers
                                    (ask-raw peer "/lab.Bench/Ask" :content-type *lines-type*
                                                                   :data (ascii-octets "1"))))))
        (dotimes (i 3)
          (is (string= "415" (http-status)))
          (is (string= "415" (http-status)))
          (with-lines ()
            (is (string= "200" (http-status)))
            (is (string= (lines 2 "!ok") (ask-lines peer "/lab.Bench/Ask" "1~%")))
            (wire:define-dialect lines :accepts (constantly nil))
            (is (string= "415" (http-status)))))))))

(test flags-of-another-dialect
  "Messages with other flags than gRPC's go to the dialect that has them, and to nobody else."
  (let ((flagged '()))
    (unwind-protect
         (with-probe (channel :server server) (:ask #'double)
           (declare (ignorable channel))
           (wire:define-dialect flags
             :accepts (lambda (content-type) (string= "application/x-flags" content-type))
             :flags '(2 128)
             :receive-flagged (lambda (call flag octets start end)
                                (declare (ignore call))
                                (push (cons flag (subseq octets start end)) flagged)))
           (with-raw-client (peer (grpc:server-address server))
             (flet ((status (flag content-type)
                      (status-of (ask-raw peer "/lab.Bench/Ask"
                                          :content-type content-type
                                          :data (concatenate 'octets (note-octets 1)
                                                             (framed (octets-of 7) :flag flag))))))
               (is (eq :ok (status 128 "application/x-flags")))
               (is (eq :ok (status 2 "application/x-flags")))
               (is (eq :internal (status 3 "application/x-flags")))
               (is (eq :internal (status 128 "application/grpc")))
               (is (equalp (list (cons 2 (octets-of 7)) (cons 128 (octets-of 7))) flagged)))))
      (wire:remove-dialect 'flags))))
