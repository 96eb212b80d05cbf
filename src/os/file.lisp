;;;; The files of unix sockets: their identity, their mode and their removal. Also files that from
;;;; the start only their owner can access, and output to descriptors. Paths are octets, as the
;;;; kernel takes them. The data of a file come from statx(2), whose structure is the same on all
;;;; processors.

(in-package #:clgrpc.os)

(define-constants
  (+at-fdcwd+ "AT_FDCWD" -100)
  (+at-symlink-nofollow+ "AT_SYMLINK_NOFOLLOW" #x100)
  (+statx-basic-stats+ "STATX_BASIC_STATS" #x7FF)
  (+statx-octets+ "sizeof (struct statx)" 256)
  (+statx-mode+ "offsetof (struct statx, stx_mode)" 28)
  (+statx-inode+ "offsetof (struct statx, stx_ino)" 32)
  (+statx-size+ "offsetof (struct statx, stx_size)" 40)
  (+statx-device+ "offsetof (struct statx, stx_dev_major)" 136)
  (+file-type-mask+ "S_IFMT" #o170000)
  (+file-type-socket+ "S_IFSOCK" #o140000)
  (+file-type-regular+ "S_IFREG" #o100000)
  (+file-type-link+ "S_IFLNK" #o120000)
  (+file-type-device+ "S_IFCHR" #o020000)
  (+file-type-pipe+ "S_IFIFO" #o010000)
  (+file-type-directory+ "S_IFDIR" #o040000)
  (+o-wronly+ "O_WRONLY" 1)
  (+o-creat+ "O_CREAT" #o100)
  (+o-excl+ "O_EXCL" #o200)
  (+o-noctty+ "O_NOCTTY" #o400)
  (+o-append+ "O_APPEND" #o2000)
  (+o-nonblock+ "O_NONBLOCK" #o4000)
  (+o-cloexec+ "O_CLOEXEC" #o2000000)
  (+f-setfl+ "F_SETFL" 4)
  (+enoent+ "ENOENT" 2)
  (+seek-end+ "SEEK_END" 2)
  (+enxio+ "ENXIO" 6))

(defmacro with-path ((sap path) &body body)
  "Evaluate BODY with SAP pointing to the octets PATH and a NUL."
  (let ((octets (gensym "OCTETS")))
    `(let ((,octets (concatenate 'octets ,path '(0))))
       (with-pinned-objects (,octets)
         (let ((,sap (vector-sap ,octets)))
           ,@body)))))

(defun remove-file (path)
  "Remove the file PATH."
  (with-path (sap path)
    (syscall ("unlink" int) (system-area-pointer sap))))

(defun set-file-mode (path mode)
  "Set the permissions of the file PATH to MODE, as with chmod."
  (with-path (sap path)
    (syscall ("chmod" int) (system-area-pointer sap) ((unsigned 32) mode))))

(defun rename-file-to (path new)
  "Rename the file PATH to NEW, and replace an existing file."
  (with-path (sap path)
    (with-path (new-sap new)
      (syscall ("rename" int) (system-area-pointer sap) (system-area-pointer new-sap)))))

(defun open-appending (path mode flags)
  "Open the file PATH to write at its end. It is made with the permissions MODE if it does not
exist."
  (with-path (sap path)
    (syscall ("open" int) (system-area-pointer sap)
             (int (logior +o-wronly+ +o-creat+ +o-append+ +o-cloexec+ flags))
             ((unsigned 32) mode))))

(defun create-file (path mode)
  "Create the file PATH, which must not exist, with the permissions MODE, less the
process's umask. Return a descriptor, which appends to the file, or a failed result."
  (open-appending path mode +o-excl+))

(defun open-to-append (path mode)
  "Return a descriptor that writes to the end of the file PATH, or a failed result. A missing file
is created with the permissions MODE, less the process's umask."
  (open-appending path mode 0))

(defun open-to-write (path)
  "Return a descriptor that writes to PATH, a device or a pipe, or a failed result: -ENXIO for a
pipe without a reader."
  (with-path (sap path)
    (let ((descriptor (syscall ("open" int) (system-area-pointer sap)
                               (int (logior +o-wronly+ +o-noctty+ +o-nonblock+ +o-cloexec+))
                               ((unsigned 32) 0))))
      ;; only the opening must not wait, not the later writes
      (unless (failed-p descriptor)
        (syscall ("fcntl" int) (int descriptor) (int +f-setfl+) (int 0)))
      descriptor)))

(defun write-octets (descriptor octets start end)
  "Write the octets START to END to DESCRIPTOR. Return the number written, or a failed result."
  (declare (type octets octets) (type index start end))
  (with-pinned-objects (octets)
    (retrying
      (syscall ("write" (signed 64)) (int descriptor)
               (system-area-pointer (sap+ (vector-sap octets) start))
               ((unsigned 64) (- end start))))))

(defun truncate-file (descriptor size)
  "Truncate the file of DESCRIPTOR to SIZE octets."
  (retrying (syscall ("ftruncate" int) (int descriptor) ((signed 64) size))))

(defun file-size (descriptor)
  "The length of the file of DESCRIPTOR in octets, or a failed result."
  (syscall ("lseek" (signed 64)) (int descriptor) ((signed 64) 0) (int +seek-end+)))

(defun set-socket-mode (socket mode)
  "Set the mode of the file to which SOCKET, a unix socket, will be bound to MODE, less the
process's umask."
  (syscall ("fchmod" int) (int socket) ((unsigned 32) mode)))

(defun file-status (path)
  "Return the result of statx for PATH, without following a link, as octets, or nil if PATH has no
file."
  (let ((status (make-octets +statx-octets+)))
    (with-path (sap path)
      (with-pinned-objects (status)
        (let ((result (syscall ("statx" int) (int +at-fdcwd+) (system-area-pointer sap)
                               (int +at-symlink-nofollow+) ((unsigned 32) +statx-basic-stats+)
                               (system-area-pointer (vector-sap status)))))
          (if (failed-p result) nil status))))))

(defun status-type (status)
  (logand +file-type-mask+ (u32le status +statx-mode+)))

(defun socket-file-identity (path)
  "Return the identity of the socket at PATH, a list that differs from the identity of any other
file, now or later. Return NIL if PATH is not a socket."
  (let ((status (file-status path)))
    (and status
         (= +file-type-socket+ (status-type status))
         (list (u64le status +statx-inode+) (u64le status +statx-device+)))))

(defun file-type (path)
  "Return two values: the type of the file at PATH, :regular, :link, :device, :pipe, :directory,
:other, or NIL if there is no file; and its length in octets."
  (let ((status (file-status path)))
    (if status
        (values (let ((type (status-type status)))
                  (cond ((= type +file-type-regular+) :regular)
                        ((= type +file-type-link+) :link)
                        ((= type +file-type-device+) :device)
                        ((= type +file-type-pipe+) :pipe)
                        ((= type +file-type-directory+) :directory)
                        (t :other)))
                (u64le status +statx-size+))
        (values nil 0))))
