;;;; Tests of the console: what it keeps and says, who may see it, and the page in a browser.

(defpackage #:clgrpc.tests.console
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:console #:clgrpc.console) (#:metrics #:clgrpc.metrics)
                    (#:workflow #:clgrpc.workflow) (#:memory #:clgrpc.memory)
                    (#:etcd #:clgrpc.etcd) (#:workflow-console #:clgrpc.workflow-console)
                    (#:rpc #:clgrpc.rpc) (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.console)

(def-suite :clgrpc.console :description "The console: what it keeps, who sees it, the page.")

;;; What several tests need

(defvar *release* (make-signal) "What a call that hangs waits for.")

(defun double (note call)
  "Twice the number of NOTE, or what a text of it asks for."
  (declare (ignore call))
  (cond ((string= "hang" (lab:note-text note)) (await-signal *release* :seconds 100) note)
        ((string/= "" (lab:note-text note)) (grpc:fail :permission-denied (lab:note-text note)))
        ((zerop (number-of note)) (grpc:fail :not-found "no such note"))
        ((plusp (number-of note)) (note (* 2 (number-of note))))
        (t (sleep (/ (- (number-of note)) 1000)) (note 0))))

(defun call-with-shown (function options)
  "Call FUNCTION with a console made with OPTIONS, a server of a probe that it observes and that
shows it, and a channel to it. Afterwards nobody looks any more."
  (let ((console (apply #'console:make-console options)))
    (with-probe (channel :server server
                 :options (list :observer console :http (list (console:console-handler console))))
        (:ask #'double)
      (funcall function console server channel))
    (eventually (null (console::console-thread console)))))

(defmacro with-shown ((console server channel &rest options) &body body)
  `(call-with-shown (lambda (,console ,server ,channel)
                      (declare (ignorable ,console ,server ,channel))
                      ,@body)
                    (list ,@options)))

;;; A client of HTTP/1.0, whose answers end with the connection

(defun call-with-stream (address function)
  (let* ((colon (position #\: address :from-end t))
         (socket (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp)))
    (unwind-protect
         (progn
           (sb-bsd-sockets:socket-connect socket
                                          (sb-bsd-sockets:make-inet-address
                                           (subseq address 0 colon))
                                          (parse-integer address :start (1+ colon)))
           (funcall function (sb-bsd-sockets:socket-make-stream
                              socket :input t :output t :external-format :utf-8
                                     :timeout +patience+)))
      (sb-bsd-sockets:socket-close socket))))

(defun ask-for (stream path headers &optional (method "GET"))
  "Ask for PATH on STREAM with HEADERS; return the status, and the headers of the answer."
  (flet ((out (control &rest arguments)
           (format stream "~?~C~C" control arguments #\Return #\Newline)))
    (out "~A ~A HTTP/1.0" method path)
    (unless (assoc "host" headers :test #'string=) (out "host: 127.0.0.1"))
    (loop for (name . value) in headers do (out "~A: ~A" name value))
    (out "")
    (finish-output stream))
  (flet ((next () (string-right-trim '(#\Return) (read-line stream))))
    (values (parse-integer (next) :start 9 :end 12)
            (loop for line = (next)
                  until (string= "" line)
                  collect (let ((colon (position #\: line)))
                            (cons (subseq line 0 colon) (subseq line (+ 2 colon))))))))

(defun fetch (server path &key headers (method "GET"))
  "What SERVER answers to METHOD for PATH with HEADERS: status, headers, body."
  (call-with-stream
   (grpc:server-address server)
   (lambda (stream)
     (multiple-value-bind (status answered) (ask-for stream path headers method)
       (values status answered
               (with-output-to-string (body)
                 (loop for char = (read-char stream nil)
                       while char do (write-char char body))))))))

(defun header (name headers)
  (cdr (assoc name headers :test #'string=)))

(defun bearer (console)
  "The header that lets a program look at CONSOLE."
  (list (cons "authorization" (format nil "Bearer ~A" (console::console-token console)))))

(defun next-event (stream)
  "The name of the next event of STREAM, and what it says."
  (let ((name (read-line stream)) (data (read-line stream)) (end (read-line stream)))
    (assert (string= "" end))
    (values (subseq name (length "event: "))
            (parse-json (subseq data (length "data: "))))))

(defun in-json (object &rest names)
  "What is in OBJECT, of PARSE-JSON, by NAMES."
  (reduce (lambda (object name) (cdr (assoc name object :test #'string=))) names
          :initial-value object))

(defun call-with-events (console server function)
  "Call FUNCTION with a stream of CONSOLE's events."
  (call-with-stream
   (grpc:server-address server)
   (lambda (stream)
     (assert (= 200 (ask-for stream "/console/events" (bearer console))))
     (funcall function stream))))

(defmacro with-events ((stream console server) &body body)
  `(call-with-events ,console ,server (lambda (,stream)
                                        (declare (ignorable ,stream))
                                        ,@body)))
