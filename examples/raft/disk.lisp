;;;; A disk: octets that are appended to, forced out, and replaced as a whole. What was appended is
;;;; there after a crash only once SYNC-DISK has returned; of the rest any prefix may be.

(in-package #:clgrpc.examples.raft)

(defgeneric disk-octets (disk)
  (:documentation "All octets of DISK."))

(defgeneric write-disk (disk octets)
  (:documentation "Append OCTETS to DISK."))

(defgeneric sync-disk (disk)
  (:documentation "Return once all that was appended to DISK outlives a crash."))

(defgeneric replace-disk (disk octets)
  (:documentation "Have OCTETS be all that DISK has. A crash leaves them or what was there."))

(defgeneric close-disk (disk)
  (:documentation "Use DISK no more."))

;;; Files

(defclass file-disk ()
  ((path :initarg :path :reader file-disk-path)
   (stream :initform nil :accessor file-disk-stream)) ; that appends
  (:documentation "A disk that is a file."))

(defun open-file-disk (path)
  "A disk that keeps its octets in the file PATH, which need not exist."
  (ensure-directories-exist path)
  (let ((disk (make-instance 'file-disk :path (pathname path))))
    (open-to-append disk)
    (sync-directory disk)
    disk))

(defun open-to-append (disk)
  (setf (file-disk-stream disk)
        (open (file-disk-path disk) :direction :output :if-exists :append
                                    :if-does-not-exist :create :element-type '(unsigned-byte 8))))

(defun sync-stream (stream)
  (finish-output stream)
  (sb-posix:fsync (sb-sys:fd-stream-fd stream)))

(defun sync-directory (disk)
  "Have the name of the file of DISK outlive a crash."
  (let ((descriptor (sb-posix:open (uiop:pathname-directory-pathname (file-disk-path disk))
                                   sb-posix:o-rdonly)))
    (unwind-protect (sb-posix:fsync descriptor)
      (sb-posix:close descriptor))))

(defmethod disk-octets ((disk file-disk))
  (with-open-file (stream (file-disk-path disk) :element-type '(unsigned-byte 8))
    (let ((octets (make-octets (file-length stream))))
      (read-sequence octets stream)
      octets)))

(defmethod write-disk ((disk file-disk) octets)
  (write-sequence octets (file-disk-stream disk)))

(defmethod sync-disk ((disk file-disk))
  (sync-stream (file-disk-stream disk)))

(defmethod replace-disk ((disk file-disk) octets)
  (let ((new (make-pathname :type "new" :defaults (file-disk-path disk))))
    (with-open-file (stream new :direction :output :if-exists :supersede
                                :element-type '(unsigned-byte 8))
      (write-sequence octets stream)
      (sync-stream stream))
    (close (file-disk-stream disk))
    (sb-posix:rename new (file-disk-path disk))
    (sync-directory disk)
    (open-to-append disk)))

(defmethod close-disk ((disk file-disk))
  (close (file-disk-stream disk)))
