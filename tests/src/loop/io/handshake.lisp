;;;; The lengths that a client announces in its handshake, and the memory of a session, OpenSSL's
;;;; included.

(in-package #:clgrpc.tests.loop)

(defun records (octets &key (kind 22) (size 16384))
  "OCTETS, a list, in records of KIND of SIZE octets at most."
  (loop while octets
        append (let ((part (loop repeat size while octets collect (pop octets))))
                 (list* kind 3 3 (ash (length part) -8) (logand 255 (length part)) part))))

(defun message (length &optional (left length))
  "A handshake message of LENGTH octets, as a list, of which LEFT arrive."
  (list* 1 (ldb (byte 8 16) length) (ldb (byte 8 8) length) (ldb (byte 8 0) length)
         (make-list left :initial-element 255)))

(defun short-p (octets &key (version "unknown") (step (length octets)))
  "True if OCTETS, a list that comes in parts of STEP octets, begins no message of over 1,000."
  (loop with record-scan = (clgrpc.loop::make-record-scan)
        while octets
        always (let ((part (coerce (loop repeat step while octets collect (pop octets)) 'octets)))
                 (clgrpc.loop::short-messages-p record-scan part (length part) 1000
                                                (constantly version)))))

(test lengths-that-clients-announce
  "The length of each unencrypted message is seen, however it is cut into records, and records into
parts."
  (dolist (size '(1 2 3 4 5 7 100 16384))
    (flet ((seen (&rest messages)
             (let ((octets (records (apply #'append messages) :size size)))
               (let ((whole (short-p octets)))
                 (is (eq whole (short-p octets :step 1)))
                 (is (eq whole (short-p octets :step 7)))
                 whole))))
      (is-true (seen (message 1000)))
      (is-false (seen (message 1001 0)))
      (is-true (seen (message 0) (message 700) (message 1000)))
      (is-false (seen (message 0) (message 700) (message #xffffff 0)))))
  (let ((before (append (records (message 500)) (records '(1) :kind 20)))
        (after (records (message 1001 0))))
    (is-false (short-p (append before after) :version "TLSv1.3") "a second ClientHello")
    (is-true (short-p (append before after) :version "TLSv1.2") "encrypted")
    (is-true (short-p (append before (records (message 1001 0) :kind 23)) :version "TLSv1.3"))))

(test clients-announce-no-long-messages
  "For nine octets OpenSSL would allocate 170,000."
  (with-still-loops (loop)
    (loop for (length . fails) in '((16384 . nil) (16385 . t))
          do (with-ends ((end loop (server-credentials) :server))
               (append-octets (end-arrived end) (coerce (records (message length 0)) 'octets))
               (read-end end)
               (is (eq fails (and (search "too long" (or (byte-channel-failure
                                                          (end-byte-channel end))
                                                         ""))
                                  t)))))))

(defun others-than-session-p (object)
  "True of objects that a session shares with others, or that belong to the test."
  (or (typep object '(or number character null function symbol end event-loop os:tls-area
                      clgrpc.loop:byte-channel-kind tls-credentials))
      (eq 'clgrpc.loop::context (type-of object))))

(defun check-session-charged (what begin &optional (idle 36864))
  "The function BEGIN returns a server's end in the state WHAT. Check that all memory that each of
twenty such ends keeps beyond the IDLE octets of an idle one, in Lisp and in OpenSSL, is charged.
Return the octets that each keeps."
  (let ((ends '()) (count 20))
    (unwind-protect
         (progn
           (push (funcall begin) ends)  ; the memory that only the first end needs stays allocated
           (let ((before (support:foreign-octets)))
             (loop repeat count do (push (funcall begin) ends))
             (let ((kept (+ (/ (- (support:foreign-octets) before) count)
                            (support:walk-octets (end-byte-channel (first ends))
                                                 #'others-than-session-p)))
                   (charged (clgrpc.loop::byte-channel-kept-octets
                             (end-byte-channel (first ends)))))
               (is (<= kept (+ idle 4096 (* 5/4 charged))) "~A: ~D octets, ~D charged" what
                   (round kept) charged)
               (when (string= "idle" what) (is (zerop charged) "~D charged" charged))
               kept)))
      (mapc #'close-end ends))))

(test what-sessions-keep-is-charged
  "This holds within the handshake, however far it is, and after it."
  (with-still-loops (loop theirs)
    (let ((server (server-credentials :roots (certificate-file "ca.pem")
                                      :client-certificates :request))
          (client (client-credentials))
          (known (client-credentials :certificate (certificate-file "client.pem")
                                     :key (certificate-file "client.key"))))
      (flet ((hearing (octets)
               (lambda ()
                 (let ((end (open-end loop server :server)))
                   (append-octets (end-arrived end) (coerce octets 'octets))
                   (read-end end)
                   end)))
             (after-flight ()
               (let ((end (open-end loop server :server)))
                 (with-ends ((peer theirs client :client))
                   (write-end peer (octets-of))
                   (carry peer end)
                   (read-end end))
                 end))
             (established (client function)
               (lambda ()
                 (let ((end (open-end loop server :server)))
                   (with-ends ((peer theirs client :client))
                     (assert (shake-ends peer end))
                     (funcall function peer end))
                   end))))
        (loop with idle = (check-session-charged "idle" (established client (constantly nil)))
              for (what begin)
                in `(("a new one" ,(hearing '()))
                     ("a length" ,(hearing (records (message 16384 0))))
                     ("half a message" ,(hearing (records (message 16384 8000))))
                     ("half a record" ,(hearing (append '(22 3 1 64 0) (message 16380 8000))))
                     ("a flight" ,#'after-flight)
                     ("with a certificate" ,(established known (constantly nil)))
                     ("half a record of data"
                      ,(established client (lambda (peer end)
                                             (write-end peer (pattern 16000))
                                             (carry peer end 15000)
                                             (read-end end))))
                     ("output that is not taken"
                      ,(established client (lambda (peer end)
                                             (declare (ignore peer))
                                             (setf (end-room end) 10)
                                             (write-end end (pattern 60000))))))
              do (check-session-charged what begin idle))))))
