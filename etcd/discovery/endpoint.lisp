;;;; Endpoints: descriptions of servers in the store, in the JSON of etcd's own Go package for them
;;;; (go.etcd.io/etcd/client/v3/naming/endpoints), {"Op":0,"Addr":"HOST:PORT","Metadata":…}. So
;;;; clients in Go find servers of clgrpc, and clients of clgrpc find servers in Go. Fields that the
;;;; package lacks are in the object Metadata: "weight", "zone", "hashKey" and "state", and the
;;;; user's own. Go's package accepts the names of fields in upper or lower case and ignores Op;
;;;; this file does the same. An endpoint is a function of the text alone.

(in-package #:clgrpc.discovery)

(defconstant +longest-endpoint+ 65536 "The maximum number of octets of a server's text.")
(defconstant +longest-word+ 512
  "The maximum number of characters of an address, a zone or a hash key.")
(defconstant +most-weight+ 65535 "The largest weight.")

(defstruct (endpoint (:copier nil))
  "The description of a server."
  ;; the address where the server listens: HOST:PORT, or unix:PATH and so on
  (address "" :type string :read-only t)
  ;; the server's weight, or nil
  (weight nil :type (or null (integer 1 #.+most-weight+)) :read-only t)
  (zone nil :type (or null string) :read-only t) ; the zone where the server is, or nil
  (hash-key nil :type (or null string) :read-only t) ; the server's name in a ring, or nil
  (state :serving :type (member :serving :draining) :read-only t) ; see below
  (metadata '() :type list :read-only t)) ; the other fields of Metadata, an alist from name to JSON

(declaim (sb-ext:freeze-type endpoint))

(document-functions
  endpoint-p "True of endpoints."
  endpoint-address "Where the server listens, as text."
  endpoint-weight "The weight by which the server gets its part of the calls, 1 to 65535; nil if the
server has none."
  endpoint-zone "The zone in which the server is, a string; nil if the server has none."
  endpoint-hash-key "Return the server's name in the ring of ring_hash, a string, or nil if that
name is its address."
  endpoint-state ":serving, or :draining if the server will soon take no more calls."
  endpoint-metadata "Return the other fields of the server's Metadata, an alist from names to JSON
as PARSE-JSON returns it; if Metadata is not an object, its value has the name \"\".")

(defmethod print-object ((endpoint endpoint) stream)
  (print-unreadable-object (endpoint stream :type t)
    (write-printable (endpoint-address endpoint) stream :limit 80)
    (format stream "~@[, weight ~D~]~@[, zone ~A~]~:[~;, draining~]" (endpoint-weight endpoint)
            (endpoint-zone endpoint) (eq :draining (endpoint-state endpoint)))))

(defparameter *own-members* '("weight" "zone" "hashKey" "state")
  "The members of Metadata that have slots of their own.")

(defun endpoint-json (endpoint)
  "The text of ENDPOINT in the store."
  (let ((own (append (and (endpoint-weight endpoint) `(("weight" . ,(endpoint-weight endpoint))))
                     (and (endpoint-zone endpoint) `(("zone" . ,(endpoint-zone endpoint))))
                     (and (endpoint-hash-key endpoint)
                          `(("hashKey" . ,(endpoint-hash-key endpoint))))
                     `(("state" . ,(string-downcase (endpoint-state endpoint)))))))
    (write-json `(("Op" . 0) ("Addr" . ,(endpoint-address endpoint))
                  ("Metadata" . ,(append own (endpoint-metadata endpoint)))))))

(defun member-of (object name)
  "The value of NAME, in any case, in OBJECT, an alist; nil if OBJECT has no such member."
  (cdr (assoc name object :test #'string-equal)))

(defun string-member (object name)
  "The string that OBJECT has as NAME; nil if it is not a string, is empty or is too long."
  (let ((value (member-of object name)))
    (and (stringp value) (<= 1 (length value) +longest-word+) value)))

(defun foreign-members (object)
  "The members of OBJECT, an alist, for which an endpoint has no slot."
  (remove-if (lambda (name) (member name *own-members* :test #'string-equal)) object :key #'car))

(define-keyword-function endpoint-text (address labels &key (state :serving) metadata)
  "Return the text that describes a server in the store: its ADDRESS, its STATE, :serving or
:draining, and METADATA, an alist from names to JSON. The labels weight, zone and hashKey in LABELS,
an alist of strings, become the fields for balancers; one with an invalid value is omitted. From any
thread."
  (let* ((weight-text (string-member labels "weight"))
         (weight (and weight-text (parse-integer weight-text :junk-allowed t))))
    (endpoint-json
     (make-endpoint :address address
                    :weight (and (typep weight `(integer 1 ,+most-weight+)) weight)
                    :zone (string-member labels "zone") :hash-key (string-member labels "hashKey")
                    :state state :metadata metadata))))

(defun parse-endpoint (text)
  "The endpoint that TEXT, octets or a string, describes, or nil and the reason why it describes
none. Wrong fields of the endpoint's Metadata count as missing."
  (handler-case
      (let ((object (parse-json text :max-depth 20 :max-length +longest-endpoint+)))
        (cond ((not (listp object)) (values nil "it is not a JSON object"))
              ((null (string-member object "Addr"))
               (values nil "it has no Addr, or one that is too long"))
              (t (metadata-endpoint (string-member object "Addr")
                                    (member-of object "Metadata")))))
    (json-error (error) (values nil (princ-to-string error)))
    (limit-exceeded (error) (values nil (princ-to-string error)))))

(defun metadata-endpoint (address metadata)
  "The endpoint at ADDRESS with METADATA, JSON or nil."
  (if (listp metadata)
      (let ((weight (member-of metadata "weight")))
        (make-endpoint :address address
                       :weight (and (typep weight `(integer 1 ,+most-weight+)) weight)
                       :zone (string-member metadata "zone")
                       :hash-key (string-member metadata "hashKey")
                       :state (if (equal "draining" (member-of metadata "state"))
                                  :draining
                                  :serving)
                       :metadata (foreign-members metadata)))
      (make-endpoint :address address
                     :metadata (if (eq :null metadata) '() `(("" . ,metadata))))))

(defun endpoint-attributes (endpoint)
  "The attributes of ENDPOINT for balancers, a plist: :weight and :hash-key, for ring_hash; and the
zone as :zone and as :path, by which weighted_target and priority choose children."
  (append (and (endpoint-weight endpoint) (list :weight (endpoint-weight endpoint)))
          (and (endpoint-hash-key endpoint) (list :hash-key (endpoint-hash-key endpoint)))
          (and (endpoint-zone endpoint)
               (list :zone (endpoint-zone endpoint) :path (list (endpoint-zone endpoint))))))
