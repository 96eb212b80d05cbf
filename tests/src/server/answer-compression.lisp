;;;; Our server with compressed requests, and its compression of answers, frame by frame.

(in-package #:clgrpc.tests.server)

(defmacro with-raw-calls ((peer &rest options) (&rest handlers) &body body)
  "WITH-PROBE with PEER, a raw client, instead of a channel."
  (let ((server (gensym "SERVER")) (channel (gensym "CHANNEL")))
    `(with-probe (,channel :server ,server :options (list ,@options)) (,@handlers)
       (with-raw-client (,peer (grpc:server-address ,server))
         ,@body))))

(defun packed-octets (format octets)
  "OCTETS compressed in FORMAT, after a prefix with the flag for compression."
  (os:open-zlib)
  (multiple-value-bind (result end) (os:deflate-octets format 6 octets 0 (length octets) 0)
    (framed (subseq-octets result 0 end) :flag 1)))

(defun packed-note (format number &rest arguments)
  (packed-octets format (grpc:serialize (apply #'note number arguments))))

(defun unpacked (exchange)
  "The messages of EXCHANGE, each as (flag note)."
  (loop with octets = (exchange-data-octets exchange)
        with format = (if (string= "gzip" (field-of "grpc-encoding" (exchange-headers exchange)))
                          :gzip
                          :deflate)
        for at = 0 then end
        while (< at (length octets))
        for end = (+ at 5 (u32be octets (1+ at)))
        collect (list (aref octets at)
                      (grpc:parse-message
                       'lab:note
                       (if (= 1 (aref octets at))
                           (multiple-value-bind (outcome result length)
                               (os:inflate-octets format octets (+ at 5) end 100000000)
                             (is (eq :ok outcome))
                             (subseq-octets result 0 length))
                           (subseq-octets octets (+ at 5) end))))))

(defun echo-note (note call)
  (declare (ignore call))
  note)

(defun encoding-fields (encoding &optional (accepted "identity, gzip"))
  `(,@(when encoding `(("grpc-encoding" . ,encoding)))
    ,@(when accepted `(("grpc-accept-encoding" . ,accepted)))))

(test compressed-requests
  "Both formats, in one piece and in many, decoded on the loop's thread and on others."
  (dolist (execution '(:inline :blocking))
    (with-raw-calls (peer :execution execution)
        (:ask (lambda (note call)
                (if (and (grpc:received-compressed-p call)
                         (eq :identity (grpc:call-compression call)))
                    note
                    (grpc:fail :failed-precondition ""))))
      (loop for (format encoding) in '((:gzip "gzip") (:deflate "deflate"))
            do (dolist (size '(0 10 20000 300000))
                 (let ((exchange (ask-raw peer "/lab.Bench/Ask" :fields (encoding-fields encoding)
                                          :data (packed-note format size :body size))))
                   (is (eq :ok (status-of exchange)))
                   ;; a client that compresses is told what it may; nothing makes us compress
                   (is (equal "gzip,deflate" (field-of "grpc-accept-encoding"
                                                       (exchange-headers exchange))))
                   (is (null (field-of "grpc-encoding" (exchange-headers exchange))))
                   (is (= size (number-of (second (first (unpacked exchange)))))))))
      (is (eq :failed-precondition
              (status-of (ask-raw peer "/lab.Bench/Ask" :fields (encoding-fields "gzip")
                                                        :data (note-octets 1)))))
      (is (eq :internal (status-of (ask-raw peer "/lab.Bench/Ask" :fields (encoding-fields "gzip")
                                            :data (packed-note :deflate 1))))))))

(defun keeps-loop-p ()
  "True in a handler that runs on a loop that no other thread has been asked to run."
  (let* ((loop loop:*event-loop*)
         (baton (and loop (loop::own-lending loop))))
    (and baton (/= baton (loop::event-loop-asked loop)))))

(test long-messages-are-decompressed-off-the-loop
  "A handler that began on the loop gives up the loop before it decompresses a message that is long,
whatever length the message announces. For a short message it keeps the loop."
  (with-raw-calls (peer :execution :inline)
      (:ask (handling ()
              (note (if (keeps-loop-p) 1 2))))
    (flet ((answer (encoding data)
             (number-of (second (first (unpacked (ask-raw peer "/lab.Bench/Ask" :data data
                                                          :fields (encoding-fields encoding))))))))
      (dolist (format '(:gzip :deflate))
        (let ((encoding (string-downcase format)))
          (is (= 2 (answer encoding (packed-note format 1 :body 100000))))
          (is (= 1 (answer encoding (packed-note format 1 :body 1000))))))
      ;; the last octets of a gzip file describe only its last member
      (let ((long (packed-note :gzip 1 :body 100000)) (end (packed-octets :gzip (octets-of))))
        (is (= 2 (answer "gzip" (framed (concatenate 'octets (subseq long 5) (subseq end 5))
                                        :flag 1))))))))

(test plain-answers-know-nothing-of-compression
  "Headers for clients that do not compress stay short."
  (with-raw-calls (peer) (:ask #'echo-note)
    (let ((exchange (ask-raw peer "/lab.Bench/Ask" :fields (encoding-fields nil "gzip")
                             :data (note-octets 1))))
      (is (equal '(":status" "content-type") (mapcar #'car (exchange-headers exchange))))
      (is (equal '(("grpc-status" . "0")) (exchange-trailers exchange))))))

(test wrong-compression
  (with-raw-calls (peer :max-receive-octets 100000) (:ask #'echo-note)
    (flet ((answer (fields data) (ask-raw peer "/lab.Bench/Ask" :fields fields :data data)))
      ;; a compressed message without an encoding
      (is (eq :internal (status-of (answer '() (packed-note :gzip 1)))))
      (is (eq :internal (status-of (answer (encoding-fields "identity") (packed-note :gzip 1)))))
      ;; an encoding that we do not have, whether it is used or not
      (dolist (data (list (note-octets 1) (packed-note :gzip 1)))
        (let ((exchange (answer (encoding-fields "snappy") data)))
          (is (eq :unimplemented (status-of exchange)))
          (is (search "snappy" (field-of "grpc-message" (exchange-headers exchange))))
          (is (equal "gzip,deflate" (field-of "grpc-accept-encoding"
                                              (exchange-headers exchange))))))
      (dolist (encoding '("gzip" "deflate"))
        (let ((format (intern (string-upcase encoding) '#:keyword)))
          (flet ((status (data) (status-of (answer (encoding-fields encoding) data))))
            (is (eq :ok (status (note-octets 1))))
            (is (eq :internal (status (framed (octets-of 1 2 3) :flag 1))))
            (is (eq :internal (status (framed (octets-of) :flag 1))))
            (is (eq :internal (status (framed (octets-of 1 2 3) :flag 2))))
            (is (eq :internal (status (packed-octets format (octets-of 255 255 255)))))
            (let ((good (packed-note format 1)))
              (is (eq :internal (status (framed (subseq-octets good 5 (1- (length good)))
                                                :flag 1)))))
            (is (eq :ok (status (packed-note format 1 :body 99000))))
            (is (eq :resource-exhausted (status (packed-note format 1 :body 100001))))
            (is (eq :resource-exhausted (status (packed-note format 1 :body 20000000))))))))))

(test compressed-streams-of-requests
  (dolist (execution '(:auto :blocking))
    (with-raw-calls (peer :execution execution)
        (:collect (handling (stream)
                    (note (loop for note = (grpc:receive stream)
                                while note
                                count (grpc:received-compressed-p stream))))
         :chat (lambda (stream call)
                 (grpc:on-message call (lambda (note)
                                         (grpc:send call (note (if (grpc:received-compressed-p call)
                                                                   (number-of note)
                                                                   (- (number-of note)))))))
                 (grpc:on-half-close call (lambda () (grpc:finish call)))
                 stream))
      (let ((data (concatenate 'octets (note-octets 1) (packed-note :gzip 2) (note-octets 3)
                               (packed-note :gzip 4 :body 100000) (note-octets 5 :body 100000))))
        (flet ((answers (path)
                 (let ((exchange (ask-raw peer path :fields (encoding-fields "gzip") :data data)))
                   (is (eq :ok (status-of exchange)))
                   (mapcar (lambda (answer) (number-of (second answer))) (unpacked exchange)))))
          (is (equal '(2) (answers "/lab.Bench/Collect")))
          (is (equal '(-1 2 -3 4 -5) (answers "/lab.Bench/Chat")))))
      (is (eq :resource-exhausted
              (status-of (ask-raw peer "/lab.Bench/Collect" :fields (encoding-fields "gzip")
                                  :data (concatenate 'octets (note-octets 1)
                                                     (packed-note :gzip 1 :body 5000000)))))))))

(test answers-as-the-client-accepts
  (with-raw-calls (peer :compression :deflate) (:ask #'echo-note)
    (flet ((answer (accepted size)
             (let ((exchange (ask-raw peer "/lab.Bench/Ask" :fields (encoding-fields nil accepted)
                                      :data (note-octets 1 :body size))))
               (is (= 1 (number-of (second (first (unpacked exchange))))))
               (list (field-of "grpc-encoding" (exchange-headers exchange))
                     (first (first (unpacked exchange)))))))
      (is (equal '("deflate" 1) (answer "gzip, deflate" 1000)))
      ;; too short to gain by it
      (is (equal '("deflate" 0) (answer "gzip, deflate" 10)))
      (is (equal '(nil 0) (answer "gzip" 1000)))
      (is (equal '(nil 0) (answer nil 1000)))
      (is (equal '(nil 0) (answer "identity" 1000))))))

(test handlers-choose-compression
  (with-raw-calls (peer)
      (:watch (fn (_note call)
                (setf (grpc:call-compression call) :gzip)
                (assert (eq :gzip (grpc:call-compression call)))
                (grpc:send call (note 1 :body 1000))
                (grpc:send call (note 2 :body 1000) :compress nil)
                (grpc:send call (note 3))
                (grpc:send call (note 4) :compress t)
                (grpc:send call (note 5 :body 300000))
                (handler-case (setf (grpc:call-compression call) :identity)
                  (grpc:misuse () nil)
                  (:no-error (value) (error "it was not too late for ~S" value))))
       :ask (lambda (note call)
              (setf (grpc:call-compression call) :gzip
                    (grpc:call-compression call) :identity)
              note))
    (let ((exchange (ask-raw peer "/lab.Bench/Watch" :fields (encoding-fields nil)
                             :data (note-octets 1))))
      (is (eq :ok (status-of exchange)))
      (is (equal '((1 1) (0 2) (0 3) (1 4) (1 5))
                 (loop for (flag note) in (unpacked exchange)
                       collect (list flag (number-of note))))))
    (let ((exchange (ask-raw peer "/lab.Bench/Ask" :fields (encoding-fields nil)
                             :data (note-octets 1 :body 1000))))
      (is (null (field-of "grpc-encoding" (exchange-headers exchange))))
      (is (= 0 (first (first (unpacked exchange))))))))

(test compressed-noise
  "An unchanged compressed message is read or is too long; a changed one ends its call with a
status, mostly :internal, and the server continues."
  (let* ((seed (random 1000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed))
         (statuses '()))
    (format *test-dribble* "~&seed ~D~%" seed)
    (with-raw-calls (peer :max-receive-octets 10000) (:ask #'echo-note)
      (dotimes (i 300)
        (let* ((size (random 12000 random))
               (data (packed-note :gzip 1 :body size))
               (before (copy-seq data)))
          (dotimes (j (random 3 random))
            (setf (aref data (+ 5 (random (- (length data) 5) random))) (random 256 random)))
          (let ((status (status-of (ask-raw peer "/lab.Bench/Ask" :fields (encoding-fields "gzip")
                                            :data data)))
                (fits (<= (grpc:serialized-size (note 1 :body size)) 10000)))
            (cond ((equalp before data) (is (eq (if fits :ok :resource-exhausted) status)))
                  (t (is (member status '(:ok :internal :resource-exhausted)))
                     (push status statuses))))))
      (let ((corrupt (count :internal statuses)))
        (is (< (length statuses) (* 4 corrupt)) "~D of ~D that were changed are corrupt" corrupt
            (length statuses)))
      (is (eq :ok (status-of (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1))))))))

;;; Compressions that users register

(defun call-with-compressor (name compress decompress function)
  "Call FUNCTION while the compression NAME is registered with these functions."
  (with-changed (encoding::**encodings**)
    (grpc:register-compressor name :compress compress :decompress decompress)
    (funcall function)))

(defun turned (octets &optional level)
  "OCTETS, each exclusive-or 255: a compression for tests that saves nothing."
  (declare (ignore level))
  (map 'octets (lambda (octet) (logxor 255 octet)) octets))

(defun turned-note (number &rest arguments)
  (framed (turned (grpc:serialize (apply #'note number arguments))) :flag 1))

(test a-compressor-that-is-registered-later
  "The connection has seen its name before, in a header block that is repeated: after the
registration the name is known there."
  (with-raw-calls (peer) (:ask #'echo-note)
    (flet ((answer ()
             (ask-raw peer "/lab.Bench/Ask" :data (turned-note 7)
                                            :fields (encoding-fields "turned" "turned"))))
      (loop repeat 3 do (is (eq :unimplemented (status-of (answer)))))
      (call-with-compressor
       :turned #'turned (lambda (octets write) (funcall write (turned octets)))
       (lambda ()
         (loop repeat 3 do (is (eq :ok (status-of (answer))))))))))

(test registered-compressors-at-the-server
  "The server announces their names, reads what they have compressed, and compresses answers for
clients that accept this. A message that is too long or broken ends its call only."
  (call-with-compressor
   :turned #'turned
   (lambda (octets write)
     (let ((octets (turned octets)))
       (case (length octets)
         (3 (loop (funcall write octets))) ; a bomb of three octets
         (4 (error "broken"))
         (t (funcall write octets)))))
   (lambda ()
     (dolist (execution '(:auto :inline :blocking))
       (with-raw-calls (peer :max-receive-octets 100000 :compression :turned :execution execution)
           (:ask #'echo-note)
         (flet ((answer (data &optional (accepted "turned") (encoding "turned"))
                  (ask-raw peer "/lab.Bench/Ask" :data data
                                                 :fields (encoding-fields encoding accepted))))
           (let* ((exchange (answer (turned-note 7 :body 1000)))
                  (octets (exchange-data-octets exchange)))
             (is (eq :ok (status-of exchange)))
             (is (equal "turned" (field-of "grpc-encoding" (exchange-headers exchange))))
             (is (equal "gzip,deflate,turned"
                        (field-of "grpc-accept-encoding" (exchange-headers exchange))))
             ;; it gains nothing, so the answer is as it was
             (is (= 0 (aref octets 0)))
             (is (= 7 (number-of (grpc:parse-message 'lab:note (subseq octets 5))))))
           (is (null (field-of "grpc-encoding"
                               (exchange-headers (answer (turned-note 7) "gzip")))))
           (is (eq :ok (status-of (answer (turned-note 1 :body 99000)))))
           (is (eq :resource-exhausted (status-of (answer (framed (octets-of 1 2 3) :flag 1)))))
           (is (eq :internal (status-of (answer (framed (octets-of 1 2 3 4) :flag 1)))))
           (let ((exchange (answer (note-octets 1) "gzip" "snappy")))
             (is (eq :unimplemented (status-of exchange)))
             (is (search "supported are gzip, deflate, turned, identity"
                         (field-of "grpc-message" (exchange-headers exchange)))))
           (is (eq :ok (status-of (answer (turned-note 1)))))))))))
