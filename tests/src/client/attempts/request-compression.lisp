;;;; Compression between our client and server, and our client with other servers that compress.

(in-package #:clgrpc.tests.client)

(defun tell (note call)
  "A note that says whether NOTE arrived compressed, with NOTE's body, compressed."
  (setf (grpc:call-compression call) (if (grpc:received-compressed-p call) :gzip :identity))
  (note (if (grpc:received-compressed-p call) 1 0) :body (lab:note-body note)))

(defun told (note call)
  "Two booleans: the peer reports a compressed message; its answer was compressed."
  (list (number-of note) (grpc:received-compressed-p call) (length (lab:note-body note))))

(test compression-by-channel-and-call
  (with-probe (channel :channel-options '(:compression :gzip)) (:ask #'tell)
    (flet ((ask-of (size &rest options)
             (multiple-value-bind (reply call) (apply #'ask channel (note 1 :body size) options)
               (told reply call))))
      (dolist (size '(1000 20000 1000000))
        (is (equal (list 1 t size) (ask-of size)))
        (is (equal (list 1 t size) (ask-of size :compression :deflate)))
        (is (equal (list 0 nil size) (ask-of size :compression :identity))))
      (is (equal '(0 nil 5) (ask-of 5)))
      ;; :compress-minimum-octets is 256, and the message takes a few octets beside its body
      (is (equal '(0 nil 240) (ask-of 240)))
      (is (equal '(1 t 260) (ask-of 260)))
      ;; what would not become shorter stays as it is
      (let* ((random (sb-ext:seed-random-state 1))
             (noise (map-into (make-octets 1000) (lambda () (random 256 random)))))
        (is (equal '(0 nil 1000)
                   (multiple-value-call #'told (ask channel (note 1 :body noise))))))
      (signals grpc:misuse (ask-of 5 :compression :lzma))
      ;; futures, and the encoding of a call
      (multiple-value-bind (reply call)
          (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1 :body 1000)))
        (is (equal '(1 t 1000) (told reply call)))
        (is (eq :gzip (grpc:call-compression call)))
        (signals grpc:misuse (setf (grpc:call-compression call) :identity)))))
  (signals grpc:misuse (grpc:make-channel "127.0.0.1:1" :compression :lzma))
  (signals grpc:misuse (grpc:start-server (make-probe) :compression :lzma)))

(test compression-of-streams
  (with-probe (channel :options '(:compression :deflate))
      (:chat (lambda (stream call)
               (grpc:do-messages (note stream)
                 (grpc:send call (note (if (grpc:received-compressed-p call) 1 0)
                                       :body (lab:note-body note))
                            :compress (and (plusp (number-of note)) t))))
       :collect (handling (stream)
                  (note (loop for note = (grpc:receive stream)
                              while note
                              count (grpc:received-compressed-p stream)))))
    (grpc:with-call (call (chat channel :open :compression :gzip))
      (loop for (number size compress) in '((1 1000 t) (0 1000 nil) (1 10 t) (0 300000 t)
                                            (1 300000 nil))
            do (grpc:send call (note number :body size) :compress compress)
               (is (equal (list (if compress 1 0) (plusp number) size)
                          (told (grpc:receive call) call))))
      (grpc:close-send call)
      (is (null (grpc:receive call))))
    (is (= 3 (number-of (collect channel (loop for size in '(1000 10 1000 20000)
                                               collect (note 1 :body size))
                                 :compression :gzip))))))

(test compression-under-load
  "Many threads call at once; their messages must not mix."
  (with-probe (channel :options '(:compression :gzip :loops 2)
                       :channel-options '(:compression :gzip))
      (:ask (handling (note) note))
    (with-threads (i 8)
      (let ((random (sb-ext:seed-random-state i)))
        (loop repeat 50
              do (let* ((body (make-octets (random 60000 random)))
                        (octet (random 256 random)))
                   (fill body octet)
                   (setf body (replace body (vector i)))
                   (unless (equalp body (lab:note-body (ask channel (note i :body body))))
                     (error "another's message"))))))))

(test compression-leaves-nothing
  "No stream of libz leaks, even if calls end with errors."
  (os:open-zlib)
  (with-probe (channel :channel-options '(:compression :gzip) :options '(:max-receive-octets 10000))
      (:ask #'tell)
    (flet ((calls ()
             (loop repeat 50
                   do (ask channel (note 1 :body 5000))
                      (is (typep (caught (ask channel (note 1 :body 20000)))
                                 'grpc:resource-exhausted)))
             (os:end-idle-streams)
             (os:zlib-stream-count)))
      (is (= (calls) (calls))))))

(defun compressing-response (exchange encoding &rest messages)
  "Answer EXCHANGE with MESSAGES, octets with their prefixes, in ENCODING, a string or nil."
  (answer-fields exchange `((":status" . "200") ("content-type" . "application/grpc")
                            ,@(when encoding `(("grpc-encoding" . ,encoding)))
                            ("grpc-accept-encoding" . "identity,deflate")))
  (apply #'answer-octets exchange messages)
  (http2:send-trailers-later (exchange-stream exchange)
                             (lambda (stream) (send-fields stream '(("grpc-status" . "0")) t))))

(test servers-say-what-they-accept
  "An encoding that a server refuses is not used again, and each request lists our encodings."
  (let ((seen nil))
    (with-answer (channel :options '(:compression :gzip))
        (lambda (exchange)
          (setf seen exchange)
          (compressing-response exchange nil (note-octets 7)))
      (flet ((encoding-of (&rest options)
               (apply #'ask channel (note 1 :body 1000) options)
               (is (equal "gzip,deflate" (field-of "grpc-accept-encoding" (exchange-headers seen))))
               (field-of "grpc-encoding" (exchange-headers seen))))
        (is (equal "gzip" (encoding-of)))
        (is (null (encoding-of)))
        (is (equal "deflate" (encoding-of :compression :deflate)))))))

(test servers-that-compress-wrongly
  (flet ((status (encoding &rest messages)
           (status-from (lambda (exchange)
                          (apply #'compressing-response exchange encoding messages))
                        :max-receive-octets 100000)))
    (is (null (status "gzip" (packed-note :gzip 1))))
    (is (null (status "deflate" (packed-note :deflate 1))))
    (is (null (status "gzip" (note-octets 1))))
    (is (eq :internal (status nil (packed-note :gzip 1))))
    (is (eq :internal (status "identity" (packed-note :gzip 1))))
    (is (eq :internal (status "snappy" (packed-note :gzip 1))))
    (is (eq :internal (status "snappy" (note-octets 1))))
    (is (eq :internal (status "gzip" (packed-note :deflate 1))))
    (is (eq :internal (status "gzip" (framed (octets-of 1 2 3) :flag 1))))
    (is (eq :resource-exhausted (status "gzip" (packed-note :gzip 1 :body 20000000))))))

(test answers-that-cannot-be-read-have-a-peer
  "The error names the peer, for compressed octets and for messages that cannot be read."
  (loop for (encoding octets) in `(("gzip" ,(framed (octets-of 1 2 3) :flag 1))
                                   (nil ,(framed (octets-of 255))))
        do (let ((encoding encoding) (octets octets))
             (with-answer (channel)
                 (lambda (exchange) (compressing-response exchange encoding octets))
               (let ((error (caught (ask channel (note 1)))))
                 (is (equal (grpc:channel-target channel) (grpc:rpc-error-peer error)))
                 (is (eq :local (grpc:rpc-error-ended-by error))))))))

(defun call-with-plain-and-packing (function note)
  "Call FUNCTION with a channel that compresses and takes turns between two connected servers, of
which one reads no compressed messages. (NOTE accepted exchange) is called for each call."
  (flet ((answer (accepted)
           (fn (_peer exchange)
             (funcall note accepted exchange)
             (answer-fields exchange `((":status" . "200")
                                       ("content-type" . "application/grpc")
                                       ("grpc-accept-encoding" . ,accepted)))
             (answer-octets exchange (note-octets 7))
             (http2:send-trailers-later
              (exchange-stream exchange)
              (lambda (stream) (send-fields stream '(("grpc-status" . "0")) t))))))
    (with-raw-server (plain) (answer "identity")
      (with-raw-server (packing) (answer "identity,gzip")
        (grpc:with-channel (channel (format nil "ipv4:~A,~A" plain packing)
                                    :balance :round-robin :compression :gzip)
          (grpc:ensure-connected channel)
          (eventually (= 2 (count :ready (grpc:channel-addresses channel)
                                  :key (lambda (facts) (getf facts :state)))))
          (funcall function channel))))))

(test a-server-that-reads-no-compression-gets-none
  "The channel's other servers get compression, and the server can read a call that was compressed
for another: of a stub, a future, a stream, in one piece or kept for another attempt."
  (let ((seen (list '())))
    (call-with-plain-and-packing
     (lambda (channel)
       (dolist (size '(1000 300000))
         (loop for function in (list (lambda () (ask channel (note 1 :body size)))
                                     (lambda ()
                                       (grpc:await (grpc:call-async #'lab.bench:ask channel
                                                                    (note 1 :body size))))
                                     (lambda ()
                                       (collect channel (list (note 1 :body size)))))
               do (loop repeat 2 do (funcall function)) ; both know now
                  (setf (car seen) '())
                  (loop repeat 4 do (is (= 7 (number-of (funcall function)))))
                  (is (= 4 (length (car seen))))
                  (loop for (accepted encoding uncompressed length) in (car seen)
                        do (cond ((string= "identity" accepted)
                                  (is (null encoding))
                                  (is-true uncompressed)
                                  (is (< size length)))
                                 (t (is (equal "gzip" encoding))
                                    (is (not uncompressed))
                                    (is (> (/ size 2) length)))))
                  (is (= 2 (count "identity" (car seen) :key #'first :test #'string=))))))
     (lambda (accepted exchange)
       (sb-ext:atomic-push (list accepted (field-of "grpc-encoding" (exchange-headers exchange))
                                 (zerop (aref (exchange-data-octets exchange) 0))
                                 (length (exchange-data-octets exchange)))
                           (car seen))))))

(test no-memory-to-unpack-a-request
  "A message that was compressed for another server may need memory that libz does not get: the call
ends, and the channel continues."
  (call-with-plain-and-packing
   (lambda (channel)
     (flet ((outcomes ()
              (let ((outcomes (loop repeat 4
                                    collect (caught (grpc:await (grpc:call-async
                                                                 #'lab.bench:ask channel
                                                                 (note 1 :body 300000)))))))
                (is (every (lambda (outcome)
                             (or (null outcome)
                                 (and (typep outcome 'grpc:resource-exhausted)
                                      (search "memory" (princ-to-string outcome)))))
                           outcomes))
                (count nil outcomes))))
       (loop repeat 2 do (ask channel (note 1))) ; both know now
       (with-replaced (('os:inflate-octets
                        (fn (_function &rest _arguments) (values :no-memory nil 0))))
         (is (= 2 (outcomes))))
       (is (= 4 (outcomes)))))
   (constantly nil)))

(test compression-by-zstd
  "In both directions, short and long, and by servers and channels with a smaller limit."
  (let ((before encoding::**encodings**))
    (unwind-protect
         (progn
           (is (eq :zstd (grpc:register-zstd)))
           (with-probe (channel :channel-options '(:compression :zstd :max-receive-octets 500000)
                                :options '(:max-receive-octets 200000))
               (:ask (lambda (note call)
                       (setf (grpc:call-compression call) :zstd)
                       (note (if (grpc:received-compressed-p call) 1 0)
                             :body (if (= 5 (number-of note)) 1000000 (lab:note-body note)))))
             (dolist (size '(1000 20000 190000))
               (multiple-value-bind (reply call) (ask channel (note 1 :body size))
                 (is (equal (list 1 t size) (told reply call)))
                 (is (eq :zstd (grpc:call-compression call)))))
             (is (typep (caught (ask channel (note 1 :body 300000))) 'grpc:resource-exhausted))
             (is (typep (caught (ask channel (note 5 :body 1000))) 'grpc:resource-exhausted))
             (is (equal '(1 t 1000)
                        (multiple-value-call #'told (ask channel (note 1 :body 1000)))))))
      (setf encoding::**encodings** before))))
