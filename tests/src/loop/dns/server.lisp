;;;; A DNS server for tests: UDP and TCP on one port of loopback, a thread for each. It has the
;;;; records that a test gives it, and can misbehave as servers, and others, do.

(in-package #:clgrpc.tests.dns)

(defstruct (name-server (:copier nil))
  "A server of tests."
  (address "" :type string)             ; HOST:PORT
  (udp nil)                             ; the socket of datagrams
  (tcp nil)                             ; the one that listens
  (threads '())
  (lock (sb-thread:make-mutex :name "name server"))
  (records (make-hash-table :test #'equal)) ; from (name . type) to a list of record data
  (codes (make-hash-table :test #'equal)) ; from a name to its code
  (manner nil)                          ; of answers, see ANSWERS
  (old nil)                             ; :repeat or :leave-out what was asked: it knows no OPT
  (questions '())                       ; (name type carrier), newest first
  (stopping nil))

(defmethod print-object ((server name-server) stream)
  (print-unreadable-object (server stream :type t)
    (write-string (name-server-address server) stream)))

(defun set-records (server name type &rest data)
  "Give NAME the records of TYPE with DATA: texts of addresses; lists of strings; a name."
  (sb-thread:with-mutex ((name-server-lock server))
    (setf (gethash (cons name type) (name-server-records server)) data)))

(defun set-code (server name code)
  "Let questions for NAME be answered with CODE or, if that is nil, with NAME's records."
  (sb-thread:with-mutex ((name-server-lock server))
    (setf (gethash name (name-server-codes server)) code)))

(defun set-old (server old)
  "Let SERVER reject messages with a record OPT (RFC 6891): with the question in its answer if OLD
is :repeat, without it if OLD is :leave-out."
  (setf (name-server-old server) old))

(defun set-manner (server manner)
  "Let MANNER, a function of a question's name, type and carrier, answer; see ANSWERS."
  (setf (name-server-manner server) manner))

(defun name-server-asked (server)
  "The questions that SERVER was asked, (name type carrier), oldest first."
  (sb-thread:with-mutex ((name-server-lock server))
    (reverse (name-server-questions server))))

;;; Messages

(defun u16 (number)
  (octets-of (ash number -8) (logand number 255)))

(defun join (&rest parts)
  (apply #'concatenate 'octets parts))

(defun data-octets (type data)
  "The octets of a record of TYPE with DATA, in the form of SET-RECORDS."
  (flet ((address (start end) (subseq (os:make-address data 0) start end)))
    (case type
      (#.+a+ (address 4 8))
      (#.+aaaa+ (address 8 24))
      (#.+txt+ (apply #'join (mapcar (lambda (string)
                                       (join (octets-of (length string)) (string-octets string)))
                                     data)))
      (#.+cname+ (name-octets data))
      (t data))))

(defun record-octets (type data &key (name (octets-of #xC0 12)) (class 1))
  "A record; its name is by default a pointer to the question's."
  (let ((octets (data-octets type data)))
    (join name (u16 type) (u16 class) (octets-of 0 0 0 60) (u16 (length octets)) octets)))

(defun answer-octets (question records &key (id 7) (code 0) (flags #x8180) (additional '()))
  "The octets of an answer with QUESTION, octets or none, RECORDS and ADDITIONAL ones, octets."
  (apply #'join (u16 id) (u16 (logior flags code))
         (u16 (if (zerop (length question)) 0 1)) (u16 (length records)) (u16 0)
         (u16 (length additional)) question (append records additional)))

(defun question-octets (name type)
  (join (name-octets name) (u16 type) (u16 1)))

(defun known-records (server name type)
  "SERVER's records for NAME and TYPE, or for NAME's alias, as octets. Under SERVER's lock."
  (loop for key being the hash-keys of (name-server-records server) using (hash-value data)
        when (and (string= name (car key)) (member (cdr key) (list type +cname+)))
          append (loop for datum in data collect (record-octets (cdr key) datum))))

(defun right-answer (server message question name type)
  (sb-thread:with-mutex ((name-server-lock server))
    (let ((code (or (gethash name (name-server-codes server)) 0)))
      (answer-octets (subseq message 12 (+ 16 (length (dns::question-name question))))
                     (if (zerop code) (known-records server name type) '())
                     :id (u16be message 0) :code code))))

(defun answers (server message carrier)
  "The answers of SERVER to MESSAGE, which came by CARRIER: a list of octets. Its manner may be
:drop, for none; :truncate, over UDP; or a function of the right answer that returns a list."
  (let* ((question (message-question (parse-message message 0 (length message))))
         (name (name-text (dns::question-name question)))
         (type (dns::question-type question)))
    (sb-thread:with-mutex ((name-server-lock server))
      (push (list name type carrier) (name-server-questions server)))
    (let ((answer (right-answer server message question name type))
          (manner (and (name-server-manner server)
                       (funcall (name-server-manner server) name type carrier))))
      (when (and (name-server-old server) (plusp (u16be message 10)))
        (setf answer (answer-octets (if (eq :repeat (name-server-old server))
                                        (question-octets name type)
                                        (octets-of))
                                    '() :id (u16be message 0) :code 1)))
      (etypecase manner
        (null (list answer))
        ((eql :drop) '())
        ((eql :truncate)
         (when (eq :udp carrier) (setf (aref answer 2) (logior 2 (aref answer 2))))
         (list answer))
        (function (funcall manner answer))))))

;;; Threads

(defun serve-datagrams (server)
  (loop with socket = (name-server-udp server)
        do (multiple-value-bind (octets length host port)
               (sb-bsd-sockets:socket-receive socket nil 4096 :element-type '(unsigned-byte 8))
             (when (name-server-stopping server) (return))
             (dolist (answer (answers server (coerce (subseq octets 0 length) 'octets) :udp))
               (sb-bsd-sockets:socket-send socket answer (length answer)
                                           :address (list host port))))))

(defun serve-stream (server stream)
  (let ((length (make-octets 2)))
    (when (= 2 (read-sequence length stream))
      (let ((message (make-octets (u16be length 0))))
        (read-sequence message stream)
        (dolist (answer (answers server message :tcp))
          (write-sequence (join (u16 (length answer)) answer) stream))
        (finish-output stream)))))

(defun serve-connections (server)
  (loop
    (let ((socket (sb-bsd-sockets:socket-accept (name-server-tcp server))))
      (unwind-protect
           (if (name-server-stopping server)
               (return)
               (serve-stream server (sb-bsd-sockets:socket-make-stream
                                     socket :input t :output t
                                            :element-type '(unsigned-byte 8))))
        (sb-bsd-sockets:socket-close socket)))))

(defun open-server-sockets ()
  "Three values: a socket for datagrams and one for connections, with the same port, and the port."
  (loop
    (let ((udp (make-instance 'sb-bsd-sockets:inet-socket :type :datagram :protocol :udp))
          (tcp (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp)))
      (handler-case
          (progn
            (sb-bsd-sockets:socket-bind udp #(127 0 0 1) 0)
            (let ((port (nth-value 1 (sb-bsd-sockets:socket-name udp))))
              (setf (sb-bsd-sockets:sockopt-reuse-address tcp) t)
              (sb-bsd-sockets:socket-bind tcp #(127 0 0 1) port)
              (sb-bsd-sockets:socket-listen tcp 16)
              (return (values udp tcp port))))
        (sb-bsd-sockets:address-in-use-error ()
          (sb-bsd-sockets:socket-close udp)
          (sb-bsd-sockets:socket-close tcp))))))

(defun start-name-server ()
  (multiple-value-bind (udp tcp port) (open-server-sockets)
    (let ((server (make-name-server :udp udp :tcp tcp
                                    :address (format nil "127.0.0.1:~D" port))))
      (setf (name-server-threads server)
            (list (sb-thread:make-thread #'serve-datagrams :arguments (list server))
                  (sb-thread:make-thread #'serve-connections :arguments (list server))))
      server)))

(defun stop-name-server (server)
  "End SERVER: send something to each of its threads, so that the thread sees the end."
  (setf (name-server-stopping server) t)
  (multiple-value-bind (host port) (sb-bsd-sockets:socket-name (name-server-udp server))
    (let ((udp (make-instance 'sb-bsd-sockets:inet-socket :type :datagram :protocol :udp))
          (tcp (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp)))
      (sb-bsd-sockets:socket-send udp (octets-of 0) 1 :address (list host port))
      (sb-bsd-sockets:socket-connect tcp host port)
      (sb-bsd-sockets:socket-close udp)
      (sb-bsd-sockets:socket-close tcp)))
  (mapc (lambda (thread) (sb-thread:join-thread thread :default nil))
        (name-server-threads server))
  (sb-bsd-sockets:socket-close (name-server-udp server))
  (sb-bsd-sockets:socket-close (name-server-tcp server)))

(defun call-with-name-server (function)
  (let ((server (start-name-server)))
    (unwind-protect (funcall function server)
      (stop-name-server server))))

(defmacro with-name-server ((server) &body body)
  "Do BODY with SERVER bound to a DNS server that runs."
  `(call-with-name-server (lambda (,server) ,@body)))
