;;;; The area that all TLS sessions of a loop share: whatever becomes of one of them, nothing of it
;;;; reaches another. Each case is an end of a session in the middle of something, on the side of a
;;;; server and of a client; behind it two others of the same loop must go on as before.

(in-package #:clgrpc.tests.loop)

(defun call-with-bystanders (role function)
  "Call FUNCTION with a loop on which two sessions of ROLE are established, another loop, and a
function that tells whether those two are unharmed."
  (let ((server (server-credentials)) (client (client-credentials))
        (client-p (eq role :client)))
    (with-still-loops (ours theirs)
      (flet ((open-pair ()
               (let ((pair (list (open-end ours (if client-p client server) role)
                                 (open-end theirs (if client-p server client)
                                           (if client-p :server :client)))))
                 (is-true (apply #'shake-ends (if client-p pair (reverse pair))))
                 pair)))
        (let ((pairs (loop repeat 2 collect (open-pair))) (count 0))
          (unwind-protect
               (funcall function ours theirs
                        (lambda ()
                          (and (area-clean-p ours)
                               (loop for (own other) in pairs
                                     always (and (exchanged-p own other (pattern (incf count 7)))
                                                 (exchanged-p other own (pattern count)))))))
            (dolist (pair pairs) (mapc #'close-end pair))))))))

(defun end-badly (end peer how)
  "Bring END, established with PEER, to its end in the way HOW."
  (flet ((arrive (octets) (append-octets (end-arrived end) octets)))
    (ecase how
      ;; the kernel takes nothing, and then the peer is gone
      (:blocked (setf (end-room end) 100)
       (write-end end (pattern 50000)))
      (:reset (setf (end-room end) 0)
       (write-end end (pattern 50000))
       (setf (end-fault end) (- os:+econnreset+)))
      (:write-fails (setf (end-fault end) (- os:+epipe+))
       (write-end end (pattern 100000)))
      ;; any condition may leave a step in its middle
      (:write-signals (setf (end-fault end) (make-condition 'simple-error))
       (signals simple-error (write-end end (pattern 100000))))
      (:heap (setf (end-fault end) (make-condition 'sb-kernel::heap-exhausted-error))
       (signals storage-condition (write-end end (pattern 100000))))
      (:answer-signals
       (os:update-keys (clgrpc.loop::tls-ssl (end-tls peer)))
       (write-end peer (pattern 10))
       (carry peer end)
       (setf (end-fault end) (make-condition 'simple-error))
       ;; TLS 1.3 answers with its next output
       (read-end end)
       (signals simple-error (write-end end (pattern 10))))
      (:damaged (write-end peer (pattern 1000))
       (carry peer end 500)
       (arrive (pattern 5000))
       (read-end end))
      (:garbage (arrive (pattern 5000))
       (read-end end))
      (:data-and-garbage (write-end peer (pattern 1000))
       (carry peer end)
       (arrive (pattern 5000))
       (read-end end))
      (:ended-and-garbage
       (clgrpc.loop:shut-byte-channel-down (end-byte-channel peer))
       (carry peer end)
       (arrive (pattern 5000))
       (read-end end))
      (:half-a-record (write-end peer (pattern 10000))
       (carry peer end 777)
       (read-end end))
      (:over (setf (end-over end) t)
       (read-end end))
      (:over-by-reset (setf (end-over end) (- os:+econnreset+))
       (read-end end)))))

(defparameter *bad-ends*
  '(:blocked :reset :write-fails :write-signals :heap :answer-signals :damaged :garbage
    :data-and-garbage :ended-and-garbage :half-a-record :over :over-by-reset))

(defun check-bad-ends (role)
  (call-with-bystanders
   role
   (lambda (ours theirs unharmed-p)
     (dolist (how *bad-ends*)
       (dolist (before-close '(:nothing :blocked :fault))
         (let* ((client-p (eq role :client))
                (end (open-end ours (if client-p (client-credentials) (server-credentials)) role))
                (peer (open-end theirs (if client-p (server-credentials) (client-credentials))
                                (if client-p :server :client))))
           (is-true (shake-ends (if client-p end peer) (if client-p peer end)))
           (end-badly end peer how)
           (is-true (area-clean-p ours) "~A leaves octets" how)
           (ecase before-close
             (:nothing)
             (:blocked (setf (end-room end) 0))
             (:fault (setf (end-fault end) (- os:+epipe+))))
           (close-end end)
           (close-end peer)
           (is-true (funcall unharmed-p) "~A, ~A" how before-close)))))))

(test a-session-of-a-server-harms-no-other (check-bad-ends :server))
(test a-session-of-a-client-harms-no-other (check-bad-ends :client))

(test a-goodbye-that-fails-harms-no-other
  (call-with-bystanders
   :server
   (lambda (ours theirs unharmed-p)
     (with-ends ((peer theirs (client-credentials) :client))
       (let ((end (open-end ours (server-credentials) :server)))
         (is-true (shake-ends peer end))
         (setf (end-fault end) (make-condition 'simple-error))
         (signals simple-error (close-end end))))
     (is-true (funcall unharmed-p)))))

;;; Handshakes

(defun hello-with-name (loop octets)
  "A ClientHello in its record, which asks for the server name OCTETS."
  (let ((name (make-string (length octets) :initial-element #\q)))
    (with-ends ((client loop (client-credentials :server-name name) :client))
      (write-end client (octets-of))
      (let* ((sent (end-sent client))
             (record (subseq (buffer-octets sent) (buffer-start sent) (buffer-end sent))))
        ;; an extension: its kind, its length and its content
        (replace record octets :start1 (+ 3 (search (concatenate 'octets
                                                                 (octets-of 0 0 (length octets))
                                                                 (ascii-octets name))
                                                    record)))))))

(test server-names-of-any-octets-harm-nobody
  (dolist (credentials (list (server-credentials)
                             (server-credentials
                              :roots (certificate-file "ca.pem")
                              :others (list (tls-credentials
                                             :certificate (certificate-file "elsewhere.pem")
                                             :key (certificate-file "elsewhere.key")
                                             :client-certificates :require)))))
    (call-with-bystanders
     :server
     (lambda (ours theirs unharmed-p)
       (dolist (name (list (octets-of #xFF) (octets-of 65 #xC3) (octets-of #xC0 #x80 66)
                           (octets-of 65 0 66) (octets-of #x80 #x80 #x80 #x80) (octets-of 10)
                           (octets-of #xF4 #x90 #x80 #x80 33)
                           (octets-of 46 97) (make-array 200 :element-type 'octet
                                                             :initial-element #xFE)))
         (dolist (tail (list (octets-of) (pattern 64) (pattern 3000)))
           (with-ends ((end ours credentials :server))
             (append-octets (end-arrived end) (hello-with-name theirs name))
             (append-octets (end-arrived end) tail)
             (is (eql clgrpc.loop:+broken+ (read-end end)))
             (is (search "not a host name" (byte-channel-failure (end-byte-channel end))) "~S: ~A"
                 name (byte-channel-failure (end-byte-channel end)))
             (is (equalp (octets-of 21 3) (subseq (buffer-octets (end-sent end)) 0 2)) "an alert"))
           (is-true (funcall unharmed-p) "~S with ~D octets" name (length tail))))))))

(test handshakes-given-up-harm-nobody
  ;; after each octet of the client: by an end, a reset, or garbage
  (call-with-bystanders
   :server
   (lambda (ours theirs unharmed-p)
     (let ((server (server-credentials)) (client (client-credentials)))
       (loop for at from 0 to 400 by 13
             do (dolist (how '(:close :reset :garbage))
                  (with-ends ((end ours server :server)
                              (peer theirs client :client))
                    (write-end peer (octets-of))
                    (let ((left at))
                      (loop repeat 4
                            do (decf left (carry peer end left))
                               (read-end end)
                               (carry end peer)
                               (read-end peer)))
                    (ecase how
                      (:close)
                      (:reset (setf (end-over end) (- os:+econnreset+)) (read-end end))
                      (:garbage (append-octets (end-arrived end) (pattern 300)) (read-end end))))
                  (is-true (funcall unharmed-p) "~A at ~D" how at)))))))

;;; Failing

(test what-came-before-a-failure-is-given-and-then-the-failure
  (with-still-loops (ours theirs)
    (with-ends ((server ours (server-credentials) :server)
                (client theirs (client-credentials) :client))
      (is-true (shake-ends client server))
      (write-end client (ascii-octets "the last that is whole"))
      (carry client server)
      (append-octets (end-arrived server) (octets-of 23 3 3 0 20))
      (append-octets (end-arrived server) (pattern 20))
      (clear-buffer (end-got server))
      (is (eql clgrpc.loop:+broken+ (read-end server)))
      (is (= 22 (buffer-fill (end-got server))))
      (is (search "bad record mac" (byte-channel-failure (end-byte-channel server)))))))

(test a-session-left-in-a-step-says-so
  (with-still-loops (ours theirs)
    (with-ends ((server ours (server-credentials) :server)
                (client theirs (client-credentials) :client))
      (is-true (shake-ends client server))
      (setf (end-fault server) (make-condition 'simple-error))
      (signals simple-error (write-end server (pattern 10)))
      (is (eql clgrpc.loop:+broken+ (write-end server (pattern 10))))
      (is (search "in the middle of a step" (byte-channel-failure (end-byte-channel server))))
      (is (zerop (carry server client)) "nothing more is sent"))))
