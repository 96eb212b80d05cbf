;;;; The etcd in a target: etcd://HOST:PORT/NAME names one, with commas between several members;
;;;; etcd:///NAME means the default one.

(in-package #:clgrpc.discovery)

(sb-ext:defglobal **default-etcd** nil)

(defun default-etcd ()
  "The etcd, as MAKE-ETCD returns it, that targets etcd:///NAME, REGISTER and others use unless they
name another; nil at first. Set the default with SETF; existing channels and registrations keep the
previous one. From any thread."
  **default-etcd**)

(defun (setf default-etcd) (etcd)
  (check-type etcd (or null etcd:etcd))
  (setf **default-etcd** etcd))

(defun checked-etcd (etcd)
  "ETCD, an argument :etcd, after a check of its type. Signal MISUSE if ETCD is nil, that is, if
there is no default etcd either."
  (or etcd (misuse "In which etcd? Give :etcd, or set DEFAULT-ETCD.")))

(defun target-authority (target)
  "The authority of TARGET, a text that begins with etcd:, or nil if it has none."
  (let ((authority (loop:split-authority target (1+ (position #\: target)))))
    (and (plusp (length authority)) authority)))

(defun authority-endpoints (authority)
  "The endpoints for MAKE-ETCD that AUTHORITY means."
  (let ((endpoints (uiop:split-string authority :separator ",")))
    (dolist (endpoint endpoints endpoints) (loop:parse-target endpoint))))

(defun parse-etcd-target (target)
  "Split TARGET, etcd://HOST:PORT/NAME or etcd:///NAME. Return two values: the endpoints for
MAKE-ETCD, or nil for the default etcd; and NAME. Signal MISUSE if TARGET has another form. From any
thread."
  (unless (and (stringp target) (eql 5 (mismatch "etcd:" target :test #'char-equal)))
    (misuse "~S does not begin with etcd:" target))
  (let ((authority (target-authority target)))
    (values (and authority (authority-endpoints authority))
            (check-name (loop:address-name target)))))
