;;;; The parts of a URL that names a server (RFC 3986 sections 3 and 3.2).

(in-package #:clgrpc.base)

(defun parse-authority (text start end)
  "Return three values of the authority in TEXT from START to END: the host, the port or nil, and
the user or nil. Return nil if the authority is malformed."
  (let* ((at (position #\@ text :start start :end end :from-end t))
         (user (and at (subseq text start at)))
         (start (if at (1+ at) start))
         (bracket (and (< start end) (char= #\[ (char text start))
                       (or (position #\] text :start start :end end)
                           (return-from parse-authority nil))))
         (after (if bracket (1+ bracket) start))
         (colon (position #\: text :start after :end end))
         (host (if bracket
                   (subseq text (1+ start) bracket)
                   (subseq text start (or colon end))))
         (port (and colon
                    (every #'digit-char-p (subseq text (1+ colon) end))
                    (parse-integer text :start (1+ colon) :end end :junk-allowed t))))
    (and (string/= "" host)
         (notany (lambda (char) (find char "[]")) host)
         (or (null bracket) (= after (or colon end)))
         (or (null colon) (typep port '(integer 1 65535)))
         (values host port user))))

(defun split-url (text)
  "Return five values of TEXT, [SCHEME://][USER@]HOST[:PORT][/PATH][?QUERY]: the host without
brackets, the port or nil, the path with the query, which begins with a slash, the scheme in lower
case or nil, and the user, not decoded, or nil. A fragment is dropped. Return nil if TEXT does not
have this form, or has a character that is not printable ASCII. From any thread."
  (when (and (stringp text)
             (every (lambda (char) (char< #\Space char #\Rubout)) text))
    (let* ((mark (search "://" text))
           (start (if mark (+ mark 3) 0))
           (end (or (position-if (lambda (char) (find char "/?#")) text :start start)
                    (length text)))
           (path (subseq text end (position #\# text :start end))))
      (multiple-value-bind (host port user) (parse-authority text start end)
        (when host
          (values host port
                  (if (and (plusp (length path)) (char= #\/ (char path 0)))
                      path
                      (concatenate 'string "/" path))
                  (and mark (string-downcase (subseq text 0 mark)))
                  user))))))

(defun host-and-port (host port)
  "Return HOST, a name or an address without brackets, and PORT as HOST:PORT, with brackets around
an IPv6 address. From any thread."
  (format nil "~:[~A~;[~A]~]:~D" (find #\: host) host port))
