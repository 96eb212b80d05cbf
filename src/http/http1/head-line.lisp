;;;; The lines of a head (RFC 9112 sections 2 to 5): the request line or the status line, then one
;;;; field on each line. Every line ends with CR LF, and neither CR nor LF may occur alone; no line
;;;; may be folded; no blank may be between a name and its colon.

(in-package #:clgrpc.http1)

(define-hot line-end ((octets octets) (start index) (end index)) index
  "Return the position of the CR that ends the line from START; signal HTTP1-ERROR if the line
contains another CR, or an LF without a CR, or does not end before END."
  (let ((at (loop for i of-type index from start below end
                  for octet = (aref octets i)
                  when (or (= +cr+ octet) (= +lf+ octet)) return i
                  finally (bad-message 400 "a line does not end"))))
    (declare (type index at))
    (unless (and (= +cr+ (aref octets at))
                 (< (1+ at) end)
                 (= +lf+ (aref octets (1+ at))))
      (bad-message 400 "a line does not end with CR LF"))
    at))

;;; The first line

(defun version-minor (octets start end)
  "The minor number of the HTTP version in the octets, which must be HTTP/1.x."
  (unless (and (= 8 (- end start))
               (loop for character across "HTTP/"
                     for i from start
                     always (= (char-code character) (aref octets i)))
               (<= 48 (aref octets (+ start 5)) 57)
               (= 46 (aref octets (+ start 6)))
               (<= 48 (aref octets (+ start 7)) 57))
    (bad-message 400 "the version is not HTTP/1.1"))
  (unless (= 49 (aref octets (+ start 5)))
    (bad-message 505 "the version is ~A, not HTTP/1.1" (octets-text octets start end)))
  (- (aref octets (+ start 7)) 48))

(defun request-line (octets start end)
  "Return three values: the method, the target and the minor version in the line from START to END."
  (let* ((method-end (span octets start end **token-octets**))
         (target (1+ method-end)))
    (unless (and (< start method-end end)
                 (= +space+ (aref octets method-end)))
      (bad-message 400 "the request line has no method"))
    (let ((target-end (span octets target end **target-octets**)))
      (unless (and (< target target-end end)
                   (= +space+ (aref octets target-end)))
        (bad-message 400 "the request line has no target, or a target with octets that no URI may ~
                          have"))
      (values (octets-text octets start method-end)
              (octets-text octets target target-end)
              (version-minor octets (1+ target-end) end)))))

(defun status-line (octets start end)
  "Return three values: the status, the reason and the minor version in the line from START to END."
  (let ((status (and (<= (+ start 12) end)
                     (= +space+ (aref octets (+ start 8)))
                     (or (= end (+ start 12)) (= +space+ (aref octets (+ start 12))))
                     (decimal octets (+ start 9) (+ start 12))))
        (reason (min end (+ start 13))))
    (unless (and status (<= 100 status 599)) (bad-message 502 "the status line has no status"))
    (unless (= end (span octets reason end **value-octets**))
      (bad-message 502 "the status line has control characters"))
    (values status
            (octets-text octets reason end)
            (version-minor octets start (+ start 8)))))

;;; Targets

(defun absolute-target (target)
  "Return two values: the authority and the path of TARGET, if it has the absolute form. Return nil
if it has another form."
  (loop for scheme in '("http://" "https://")
        when (alexandria:starts-with-subseq scheme target :test #'char-equal)
          do (let* ((start (length scheme))
                    (slash (or (position-if (lambda (character) (find character "/?")) target
                                            :start start)
                               (length target)))
                    (path (subseq target slash)))
               (return (values (subseq target start slash)
                               (cond ((string= "" path) "/")
                                     ((char= #\? (char path 0))
                                      (concatenate 'string "/" path))
                                     (t path)))))))

(defun split-target (http-method target)
  "Return two values: the authority, or nil, and the path in TARGET, the target of a request with
HTTP-METHOD (RFC 9112 section 3.2)."
  (cond ((char= #\/ (char target 0)) (values nil target))
        ((and (string= "*" target) (string= "OPTIONS" http-method)) (values nil target))
        ((string= "CONNECT" http-method) (bad-message 501 "this server is not a proxy"))
        (t (multiple-value-bind (authority path) (absolute-target target)
             (unless authority (bad-message 400 "the target is not a path"))
             (values authority path)))))

;;; Fields

(define-hot field-from ((octets octets) (start index) (end index)) hpack:field
  (let ((colon (span octets start end **token-octets**)))
    (cond ((blank-p (aref octets start)) (bad-message 400 "a field is folded"))
          ((or (= start colon) (= end colon) (/= +colon+ (aref octets colon)))
           (bad-message 400 "a field's name is not followed by a colon")))
    (let ((from (1+ colon)) (to end))
      (declare (type index from to))
      (loop while (and (< from to) (blank-p (aref octets from))) do (incf from))
      (loop while (and (< from to) (blank-p (aref octets (1- to)))) do (decf to))
      (unless (= to (span octets from to **value-octets**))
        (bad-message 400 "a field's value has control characters"))
      (hpack:make-field (lower-case-octets octets start colon) (subseq-octets octets from to)))))

(defun read-fields (octets start end limit)
  "Return a list of the fields, at most LIMIT, in the lines from START to END."
  (let ((fields '()) (count 0) (at start))
    (loop while (< at end)
          do (let ((line-end (line-end octets at end)))
               (when (= at line-end) (bad-message 400 "a line is empty"))
               (when (< limit (incf count)) (bad-message 431 "there are more than ~D fields" limit))
               (push (field-from octets at line-end) fields)
               (setf at (+ 2 line-end))))
    (nreverse fields)))
