;;;; The dialogue with a proxy, by HTTP's CONNECT (RFC 9110 section 9.3.6) or by SOCKS5 (RFC 1928,
;;;; RFC 1929). Pure: no I/O.
;;;;
;;;; A dialogue is a function of OCTETS from START to END: those that were received and are not yet
;;;; consumed. It returns three values: the number of octets that it consumes; an outcome, nil (more
;;;; must come), T (the tunnel is open) or a text (the reason of a failure); and octets to send, or
;;;; nil. The dialogue is first called before any octets were received.

(in-package #:clgrpc.proxy)

(defun basic-credentials (proxy)
  "PROXY's user and password in the form of a field Proxy-Authorization (RFC 7617)."
  (encode-base64 (string-octets (format nil "~A:~A" (proxy-user proxy) (proxy-password proxy)))
                 :padding t))

(defun connect-request (proxy)
  "The octets that ask PROXY for a tunnel by HTTP."
  (let ((destination (proxy-destination proxy)))
    (string-octets
     (format nil "~{~A~C~C~}"
             (loop for line in (list (format nil "CONNECT ~A HTTP/1.1" destination)
                                     (format nil "Host: ~A" destination)
                                     (format nil "User-Agent: grpc-lisp-clgrpc/~A" **version**)
                                     (and (proxy-user proxy)
                                          (format nil "Proxy-Authorization: Basic ~A"
                                                  (basic-credentials proxy)))
                                     "")
                   when line append (list line #\Return #\Newline))))))

(defun head-end (octets start end)
  "The index after the empty line in OCTETS from START to END; nil if OCTETS have no empty line
there."
  (let ((mark (search #(13 10 13 10) octets :start2 start :end2 end)))
    (and mark (+ mark 4))))

(defun read-connect-answer (proxy octets start end)
  "The outcome of a dialogue for the head of an answer in OCTETS from START to END: nil for an
interim answer (RFC 9110 section 15.2), after which another comes. Status 101 is not treated as
interim here, since the client did not ask for an upgrade."
  (let* ((line (map 'string #'code-char
                    (subseq octets start (search #(13 10) octets :start2 start :end2 end))))
         (status (and (eql 7 (mismatch "HTTP/1." line))
                      (eql #\Space (char-at line 8))
                      (parse-integer line :start 9 :end (min 12 (length line)) :junk-allowed t))))
    (cond ((null status) "the proxy does not speak HTTP/1.1")
          ((and (<= 100 status 199) (/= 101 status)) nil)
          ((<= 200 status 299) t)
          (t (format nil "the proxy refuses: ~A~A" (printable-text (subseq line 9) :limit 80)
                     (cond ((/= 407 status) "")
                           ((proxy-user proxy) " (it does not take this user and password)")
                           (t " (no user and password are in its URL)")))))))

(defun char-at (text index)
  (and (< index (length text)) (char text index)))

(defun http-dialogue (proxy)
  "The dialogue of CONNECT with PROXY. The octets of interim answers count toward the limit of one
answer."
  (let ((asked nil) (looked 0))         ; no head ends before LOOKED
    (lambda (octets start end)
      (let ((head-end (head-end octets (max start looked) end)))
        (setf looked (or head-end (- end 3)))
        (cond ((not (shiftf asked t)) (values 0 nil (connect-request proxy)))
              (head-end
               (values (- head-end start) (read-connect-answer proxy octets start head-end) nil))
              (t (values 0 nil nil)))))))

(defparameter *socks-failures*
  '((1 "a general failure") (2 "its rules forbid the connection") (3 "the network is unreachable")
    (4 "the host is unreachable") (5 "connection refused") (6 "the time to live is over")
    (7 "the proxy does not know the command") (8 "the proxy does not know the kind of address"))
  "The failures in the reply of a SOCKS5 proxy (RFC 1928 section 6), by number.")

(defun listed-octets (list)
  (coerce list 'octets))

(defun text-with-length (text)
  "A list of the number of TEXT's octets, +LONGEST-SOCKS-TEXT+ at most, and these octets."
  (let ((octets (string-octets text)))
    (cons (length octets) (coerce octets 'list))))

(defun socks-request (proxy)
  "The octets that ask PROXY for a connection (RFC 1928 section 4)."
  (let ((address (os:make-address (proxy-host proxy) 0)))
    (listed-octets
     (append '(5 1 0)
             (cond ((null address) (cons 3 (text-with-length (proxy-host proxy))))
                   ((= os:+af-inet+ (os:address-family address))
                    (cons 1 (coerce (subseq address 4 8) 'list)))
                   (t (cons 4 (coerce (subseq address 8 24) 'list))))
             (list (ldb (byte 8 8) (proxy-port proxy)) (ldb (byte 8 0) (proxy-port proxy)))))))

(defun socks-password (proxy)
  "The octets that send PROXY's user and password (RFC 1929)."
  (listed-octets (append '(1) (text-with-length (proxy-user proxy))
                         (text-with-length (proxy-password proxy)))))

(defun socks-reply-length (octets start end)
  "The length of the reply in OCTETS from START to END, or nil while it is not known."
  (let ((kind (and (> (- end start) 4) (aref octets (+ start 3)))))
    (case kind
      ((nil) nil)
      (1 10)
      (4 22)
      (3 (+ 7 (aref octets (+ start 4))))
      ;; the kind of address is unknown; the reply counts as a failure
      (t 4))))

(defun socks-dialogue (proxy)
  "The dialogue of SOCKS5 with PROXY."
  (let ((stage :greeting) (no-socks "the proxy does not speak SOCKS5"))
    (lambda (octets start end)
      (let ((count (- end start)))
        (flet ((octet (i) (aref octets (+ start i)))
               (ask ()
                 (setf stage :request)
                 (values 2 nil (socks-request proxy))))
          (ecase stage
            (:greeting
             (setf stage :method)
             (values 0 nil (listed-octets (if (proxy-user proxy) '(5 2 0 2) '(5 1 0)))))
            (:method
             (cond ((and (plusp count) (/= 5 (octet 0))) (values 0 no-socks nil))
                   ((< count 2) (values 0 nil nil))
                   ((= 0 (octet 1)) (ask))
                   ((and (= 2 (octet 1)) (proxy-user proxy))
                    (setf stage :password)
                    (values 2 nil (socks-password proxy)))
                   (t (values 2 "the proxy refuses (it requires another user and password)" nil))))
            (:password
             (cond ((< count 2) (values 0 nil nil))
                   ((= 0 (octet 1)) (ask))
                   (t (values 2 "the proxy refuses (it does not take this user and password)"
                              nil))))
            (:request
             (let ((length (socks-reply-length octets start end)))
               (cond ((and (plusp count) (/= 5 (octet 0))) (values 0 no-socks nil))
                     ((and (> count 1) (/= 0 (octet 1)))
                      (values 2 (format nil "the proxy refuses: ~A"
                                        (or (second (assoc (octet 1) *socks-failures*))
                                            (format nil "its reason is ~D" (octet 1))))
                              nil))
                     ((or (null length) (< count length)) (values 0 nil nil))
                     ((= 4 length) (values 4 no-socks nil))
                     (t (values length t nil)))))))))))

(defun make-dialogue (proxy)
  "The dialogue with PROXY."
  (ecase (proxy-kind proxy)
    (:http (http-dialogue proxy))
    (:socks5 (socks-dialogue proxy))))
