;;;; The static table of RFC 7541 appendix A, declared once, and the search in it.
;;;;
;;;; The entries are ordinary FIELDs, so a decoded index yields the same object each time.
;;;; The search runs once per field object: FIELD-STATIC remembers the answer.

(in-package #:clgrpc.hpack)

(defconstant +static-count+ 61 "The last index of the static table; the dynamic table follows.")

(defconstant +static-name-only+ 128
  "The number that STATIC-MATCH adds to the index of an entry that has only the name in common.")

(declaim (type simple-vector **static-fields** **static-names**))

(define-load-time-global **static-fields**
    (let ((index 0))
      (flet ((entry (name &optional (value ""))
               (let ((field (string-field name value)))
                 (setf (field-static field) (incf index))
                 field)))
        (concatenate
         'simple-vector
         '(nil)                         ; there is no index 0
         (mapcar (lambda (row) (apply #'entry row))
                 '((":authority") (":method" "GET") (":method" "POST") (":path" "/")
                   (":path" "/index.html") (":scheme" "http") (":scheme" "https")
                   (":status" "200") (":status" "204") (":status" "206") (":status" "304")
                   (":status" "400") (":status" "404") (":status" "500")
                   ("accept-charset") ("accept-encoding" "gzip, deflate") ("accept-language")
                   ("accept-ranges") ("accept") ("access-control-allow-origin") ("age") ("allow")
                   ("authorization") ("cache-control") ("content-disposition")
                   ("content-encoding") ("content-language") ("content-length")
                   ("content-location") ("content-range") ("content-type") ("cookie") ("date")
                   ("etag") ("expect") ("expires") ("from") ("host") ("if-match")
                   ("if-modified-since") ("if-none-match") ("if-range") ("if-unmodified-since")
                   ("last-modified") ("link") ("location") ("max-forwards")
                   ("proxy-authenticate") ("proxy-authorization") ("range") ("referer")
                   ("refresh") ("retry-after") ("server") ("set-cookie")
                   ("strict-transport-security") ("transfer-encoding") ("user-agent") ("vary")
                   ("via") ("www-authenticate"))))))
  "The fields of the static table (RFC 7541 appendix A) by index, from 1.")

(define-load-time-global **static-names**
    (let* ((longest (loop for index from 1 to +static-count+
                          maximize (length (field-name (svref **static-fields** index)))))
           (names (make-array (1+ longest) :initial-element '())))
      (loop for index from +static-count+ downto 1
            do (push index (svref names (length (field-name (svref **static-fields** index))))))
      names)
  "A vector with, for each length of a name, the ascending list of the indices of the entries whose
names have that length.")

(define-hot find-static ((field field)) octet
  (let ((name (field-name field)) (value (field-value field)) (name-index 0))
    (declare (type octet name-index))
    (when (< (length name) (length **static-names**))
      (dolist (index (svref **static-names** (length name)))
        (declare (type (integer 1 #.+static-count+) index))
        (let ((entry (svref **static-fields** index)))
          (declare (type field entry))
          (when (same-octets-p name (field-name entry))
            (when (same-octets-p value (field-value entry)) (return-from find-static index))
            (when (zerop name-index) (setf name-index index))))))
    (+ name-index +static-name-only+)))

(define-hot (static-match :inline t) ((field field)) octet
  "Return the index of FIELD in the static table. If FIELD is not in the table, return
+STATIC-NAME-ONLY+ plus the lowest index of an entry with its name, or plus 0 if there is no such
entry."
  (let ((known (field-static field)))
    (if (= known +static-unknown+)
        (setf (field-static field) (find-static field))
        known)))
